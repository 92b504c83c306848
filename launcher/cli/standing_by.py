"""The process that stands by for the next commands of a terminal, with all loaded that they need, which `standbys.py` leaves behind.

It runs each command that is handed over (`handing_over.py`) in a fork of its own (`taken_command.py`), which it makes ahead. It has one
thread, asks no host anything, and keeps nothing of a command. It ends by itself: after `hold` seconds without a command, with the session whose
commands it serves, when its socket is removed, when a file of launcher changes, and after an hour.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

import launcher
from launcher import core_dumps, untrusted_json, user_sockets
from launcher.cli import app, command_process, standbys
from launcher.cli.taken_command import BEGIN, SAID_S, TAKE, TakenCommand
from launcher.hosts import background, held_socket, ssh_lookup

LOOK_S = 1.0
MOST_AGE_S = 3600.0
MOST_LEARNED = 1 << 20
"""More than a pipe holds: each read gets whole messages."""
_USUAL = ("ps",), ("logs",), ("attach",), ("stop", "last"), ("run",)
"""Command lines that mean nothing by themselves: they are read, and not run."""
_PACKAGE = os.path.dirname(launcher.__file__)


def main() -> None:
    """Stand by for the commands of a session, as standard input says. In a fork, run one of them."""
    core_dumps.turn_off()
    order = standbys.Order(**untrusted_json.decode(sys.stdin.buffer.read()))
    os.chdir("/")
    mark = Path(sys.argv[2])
    try:
        command = _Standby(order, mark).serve()
    except OSError:  # another process stands by, or the folder of sockets has gone
        command = None
        mark.unlink(missing_ok=True)
    if command is None:
        os._exit(0)
    command_process.main(command.leave)


class _Next(NamedTuple):
    """The fork that waits for the next command, and the stream over which it gets that."""

    pid: int
    stream: socket.socket


class _Standby:
    """What this process has loaded, its socket, and its forks."""

    def __init__(self, order: standbys.Order, mark: Path) -> None:
        """Load what is ordered, and listen. Raises OSError if another process listens there, or none may any more."""
        self._order = order
        self._began = time.monotonic()
        self._files: dict[str, tuple[int, int]] = {}
        self._load(order.modules)
        ssh_lookup.remember(
            ssh_lookup.Question(name, user, port, tuple(jumps)) for name, user, port, jumps in order.questions
        )
        _rehearse()
        gc.collect()
        gc.freeze()  # a collection in a fork would copy all of it
        self._listener = background.Listener(Path(user_sockets.standby(order.session)), mark)
        self._learned, self._learns = os.pipe()
        self._forks: dict[int, int] = {}
        """The forks that run commands, each with a descriptor of the process in which its command was typed."""
        self._next: _Next | None = None
        self._is_current = True
        """Whether nothing was installed since, as far as that was looked at."""
        self._idle_since = time.monotonic()
        self._asker: socket.socket | None = None
        """Who has asked for our end: it hears of it when this closes."""

    def serve(self) -> TakenCommand | None:
        """Serve until the time is up, then wait for the forks. Return in a fork, with the command that it is to run."""
        has_ended = False
        while self._may_go_on():
            is_due = self._next is None and (has_ended or not self._forks)
            if is_due and (command := self._prepare()) is not None:
                return command
            ready = select.select([self._listener.socket.fileno(), self._learned], [], [], LOOK_S)[0]
            self._reap()
            has_ended = self._learned in ready  # a command, which says what it had to load
            if has_ended:
                self._load(os.read(self._learned, MOST_LEARNED).decode().split())
                self._dismiss()
            if self._listener.socket.fileno() in ready:
                with contextlib.suppress(OSError):  # a client that leaves, or says nothing in time
                    if (command := self._attend()) is not None:
                        return command
        self._listener.close()
        self._dismiss()
        while self._forks:
            self._reap()
            time.sleep(LOOK_S / 10)
        return None

    def _may_go_on(self) -> bool:
        is_wanted = self._left_s() > 0 and self._asker is None and self._has_session()
        return is_wanted and self._is_current and self._listener.is_ours()

    def _left_s(self) -> float:
        now = time.monotonic()
        since = now if self._forks else self._idle_since
        return min(since + self._order.hold_s, self._began + MOST_AGE_S) - now

    def _has_session(self) -> bool:
        """Whether the process lives that has begun our session: a terminal's shell, mostly."""
        return user_sockets.process_state(self._order.session) not in ("", "Z")

    def _attend(self) -> TakenCommand | None:
        """Answer one client; return only in a fork with something. Raises OSError."""
        stream, _ = self._listener.socket.accept()
        stream.settimeout(SAID_S)
        client = user_sockets.check_peer(stream)
        question = held_socket.hear(stream)
        if "ask" in question:
            users = len(self._forks)
            held_socket.say(stream, host="", about="", left_s=self._left_s(), users=users, pid=os.getpid())
            if question["ask"] == "close":
                self._asker = stream
            return None
        if self._next is None and (command := self._prepare()) is not None:
            return command
        if self._next is not None:
            self._forks[self._next.pid] = os.pidfd_open(client)
            with self._next.stream as given:
                self._next = None
                socket.send_fds(given, [TAKE], [stream.fileno()])
                self._is_current = all(_stamp(path) == stamp for path, stamp in self._files.items())
                given.sendall(BEGIN if self._is_current else b"")
        return None

    def _prepare(self) -> TakenCommand | None:
        """Fork the process that runs the next command. Return in it, once it has the command."""
        with contextlib.suppress(OSError):
            ours, theirs = socket.socketpair()
            fork = os.fork()
            if fork:
                theirs.close()
                self._next = _Next(fork, ours)
                return None
            try:
                ours.close()
                self._listener.socket.close()
                os.close(self._learned)
                _rehearse()
                return TakenCommand(theirs, self._learns)
            except (OSError, ValueError):
                os._exit(0)
        return None

    def _dismiss(self) -> None:
        """Let the fork end that waits for a command, if one does."""
        if self._next is not None:
            self._next.stream.close()
            self._next = None

    def _reap(self) -> None:
        """Note which forks have ended. One that is stopped cannot see that its command was killed, so it is killed too."""
        while pid := _ended_child():
            if self._next is not None and pid == self._next.pid:
                self._dismiss()
            if pid in self._forks:
                os.close(self._forks.pop(pid))
                self._idle_since = time.monotonic()
        left = select.select(self._forks.values(), [], [], 0)[0] if self._forks else []
        for fork, process in self._forks.items():
            if process in left and user_sockets.is_stopped(fork):
                os.kill(fork, signal.SIGKILL)  # our own child, which nobody else has waited for

    def _load(self, names: list[str]) -> None:
        """Load modules, and note the files of launcher as they are."""
        for name in names:
            with contextlib.suppress(ImportError):  # of a program that runs us, such as `__main__`
                importlib.import_module(name)
        _build_models(BaseModel)
        paths = [getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]]
        known = [path for path in paths if path.startswith(_PACKAGE)]
        known += [path for path in sys.path if os.path.isdir(path)]
        # What was known before keeps its stamp: it may have changed since it was loaded.
        self._files = {path: _stamp(path) for path in known} | self._files


def _rehearse() -> None:
    """Read a few command lines: a fork shares memory with its parent until it uses that, and what it copies now no command waits for."""
    for verb, *words in _USUAL:
        root = app.command_of(app.app_for([verb]))
        context = root.make_context("launch", [verb, *words])
        root.commands[verb].make_context(verb, words, parent=context)


def _ended_child() -> int:
    """Return the pid of a child that has ended, which is forgotten then; 0 if none has."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def _stamp(path: str) -> tuple[int, int]:
    try:
        state = os.stat(path)
    except OSError:
        return 0, 0
    return state.st_mtime_ns, state.st_size


def _build_models(kind: type[BaseModel]) -> None:
    """Have pydantic build the models of launcher that it would build when they are first used: in each fork anew."""
    for model in kind.__subclasses__():
        if model.__module__.startswith(f"{launcher.__name__}.") and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)
        _build_models(model)
