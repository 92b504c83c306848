"""The process that stands by for the next commands of a terminal, with all loaded that they need, which `standbys.py` leaves behind.

It runs each command that is handed over (`handing_over.py`) in a fork of its own (`taken_command.py`). It has one thread, asks no
host anything, and keeps nothing of a command. It ends by itself: after `hold` seconds without a command, with the session whose
commands it serves, when its socket is removed, when a file of launcher changes, and after an hour.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from pydantic import BaseModel

import launcher
from launcher import core_dumps, user_sockets
from launcher.cli import app, command_process, handing_over, standbys
from launcher.cli.taken_command import PIPE, SAID_S, TakenCommand
from launcher.hosts import background, held_socket, ssh_config

LOOK_S = 1.0
MOST_AGE_S = 3600.0
_PACKAGE = os.path.dirname(launcher.__file__)


def main() -> None:
    """Stand by for the commands of a session, as standard input says. In a fork, run one of them."""
    core_dumps.turn_off()
    order = standbys.Order(**json.loads(sys.stdin.buffer.read()))
    os.chdir("/")
    try:
        command = _Standby(order, Path(sys.argv[2])).serve()
    except OSError:  # another process stands by, or the folder of sockets has gone
        command = None
    if command is None:
        os._exit(0)
    command_process.main(command.leave)


class _Standby:
    """What this process has loaded, its socket, and its forks."""

    def __init__(self, order: standbys.Order, mark: Path) -> None:
        """Load what is ordered, and listen. Raises OSError if another process listens there, or none may any more."""
        self._order = order
        self._began = time.monotonic()
        self._files: dict[str, tuple[int, int]] = {}
        self._load(order.modules)
        ssh_config.remember(
            ssh_config.Question(name, user, port, tuple(jumps)) for name, user, port, jumps in order.questions
        )
        for verb in handing_over.VERBS:
            app.command_of(app.app_for([verb]))
        gc.collect()
        gc.freeze()  # a collection in a fork would copy all of it
        self._listener = background.Listener(Path(user_sockets.standby(order.session)), mark)
        self._learned, self._learns = os.pipe()
        self._forks: dict[int, int] = {}
        """The forks, each with a descriptor of the process in which its command was typed."""
        self._idle_since = time.monotonic()
        self._asker: socket.socket | None = None
        """Who has asked for our end: it hears of it when this closes."""

    def serve(self) -> TakenCommand | None:
        """Serve until the time is up, then wait for the forks. Return in a fork, with the command that it is to run."""
        while self._left_s() > 0 and self._asker is None and self._listener.is_ours() and self._has_session():
            ready = select.select([self._listener.socket.fileno(), self._learned], [], [], LOOK_S)[0]
            self._reap()
            if self._learned in ready:
                self._load(os.read(self._learned, PIPE).decode().split())
            if self._listener.socket.fileno() in ready:
                with contextlib.suppress(OSError):  # a client that leaves, or says nothing in time
                    if not self._is_current():
                        break
                    if (command := self._attend()) is not None:
                        return command
        self._listener.close()
        while self._forks:
            self._reap()
            time.sleep(LOOK_S / 10)
        return None

    def _left_s(self) -> float:
        now = time.monotonic()
        since = now if self._forks else self._idle_since
        return min(since + self._order.hold_s, self._began + MOST_AGE_S) - now

    def _has_session(self) -> bool:
        """Whether the process lives that has begun our session: a terminal's shell, mostly."""
        return _state(self._order.session) not in ("", "Z")

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
        process = os.pidfd_open(client)
        fork = os.fork()
        if fork:
            self._forks[fork] = process
            return None
        try:
            self._listener.socket.close()
            os.close(self._learned)
            return TakenCommand(stream, self._learns)
        except (OSError, ValueError):
            os._exit(0)

    def _reap(self) -> None:
        """Note which forks have ended. One that is stopped cannot see that its command was killed, so it is killed too."""
        while self._forks and (pid := os.waitpid(-1, os.WNOHANG)[0]):
            os.close(self._forks.pop(pid))
            self._idle_since = time.monotonic()
        left = select.select(self._forks.values(), [], [], 0)[0] if self._forks else []
        for fork, process in self._forks.items():
            if process in left and _state(fork) in ("T", "t"):
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

    def _is_current(self) -> bool:
        """Whether nothing was installed since, neither of launcher nor of what it loads."""
        return all(_stamp(path) == stamp for path, stamp in self._files.items())


def _state(pid: int) -> str:
    """Return the state of a process as one letter, as /proc has it; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


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
