"""A command beside a run, for `launch exec`; and what such a command and the training have in common at their start.

The client says "ping" while it listens and "end" when it has heard enough; it gets what the command prints, stream by
stream, and at last how it ended. Nothing of it goes on record, and nothing of it outlives the connection: whatever it
started, in whatever session, is below this process, which takes in its orphans (Linux; on macOS an orphan gets away).

Should this process be killed, its guard ends them: a small process that waits for just that, and knows them by a token of
this one command in their environment (Linux).

It has the run's environment but for what could write into the record (LAUNCH_SOCKET, LAUNCH_ATTEMPT), and without the
run's secrets: those are the training's alone. It carries the run's token, so whoever resumes an interrupted run ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from typing import Any, Callable

from . import process, secret, strict_json
from .rundir import Run, read_json, read_text

TURN_S = 0.05
GRACE_S = 3.0
QUIET_S = 1.0
MARK = "LAUNCH_EXEC"
PIECE = 3900  # bytes: with its line no more than what a pipe that can be written takes at once
_STRAY = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "LOCAL_WORLD_SIZE",
)
_STRAY_PREFIXES = ("LAUNCH_", "ACCELERATE_", "TORCHELASTIC_")


def main(arguments: list[str]) -> int:
    """Guard a command: wait for the end of whoever holds our standard input, then end what carries its token; return 0."""
    sys.stdin.buffer.read()
    process.end(lambda: process.with_token(arguments[0], MARK), "token", GRACE_S)
    return 0


class CommandError(Exception):
    """A command that cannot be started; its code is a word for programs, its text for people."""

    def __init__(self, code: str, message: str) -> None:
        """Hold both."""
        super().__init__(message)
        self.code = code


_LAUNCHERS = ("torch", "accelerate", "deepspeed", "horovod")  # a module of theirs starts ranks itself


def environment(run: Run, runtime: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a run's processes, without its secrets; `runtime` is the one put on record."""
    inherited = secret.without(dict(os.environ), read_json(run.plan))
    found = {
        name: value
        for name, value in inherited.items()
        if name not in _STRAY and not name.startswith(_STRAY_PREFIXES)
    }
    worker = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "worker")
    for name, first in (("PYTHONPATH", worker), ("PATH", os.path.dirname(interpreter_of(runtime)))):
        rest = found.get(name)
        found[name] = first + os.pathsep + rest if rest else first
    found.update(PYTHONUNBUFFERED="1", LAUNCH_RUN=run.id, LAUNCH_TOKEN=read_text(run.token) or "")
    _keep_hub_downloads(found, run.cache)
    gpus = runtime.get("gpus")
    if gpus is not None:  # no card for a plan without one, whatever the host has
        found.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES=",".join(gpus))
        # Whoever only asks whether there is a card must not begin CUDA: a fork of it could not use one any more.
        found.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return found


def _keep_hub_downloads(found: dict[str, str], cache: str) -> None:
    """Let all runs of a root share what they take from a model hub, unless the user has named a place; a login stays."""
    if "HF_HOME" not in found:
        home = found.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        found.setdefault("HF_TOKEN_PATH", os.path.join(home, "huggingface", "token"))
        found["HF_HOME"] = os.path.join(cache, "huggingface")


def interpreter_of(runtime: dict[str, Any]) -> str:
    """Return the path of a run's own interpreter."""
    return runtime.get("interpreter") or sys.executable


def native_command(command: list[str], interpreter: str, ranks: int = 1) -> list[str]:
    """Put the environment's interpreter in the place of a bare `python`; other programs are found by PATH.

    Of several ranks each is such a Python, started by torchrun, that sees its own card alone: the worker, as a program,
    sees to it. In exclusive mode a rank that touched another's would fail. Other commands start their ranks themselves.
    """
    if command[0] in ("python", "python3"):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        starts_them = command[1:2] == ["-m"] and command[2:3] and command[2].split(".")[0] in _LAUNCHERS
        wrapped = [*torchrun, "-m", "launcher_worker"] if ranks > 1 and not starts_them else []
        return [interpreter, *wrapped, *command[1:]]
    beside = os.path.join(os.path.dirname(interpreter), command[0])
    if os.sep not in command[0] and os.access(beside, os.X_OK):
        return [beside, *command[1:]]
    return command


def reap(child: subprocess.Popen[bytes]) -> int | None:
    """Collect ended children, adopted orphans too; return the command's wait status once it has ended."""
    for pid, status in process.reap_children():
        if pid == child.pid:
            child.returncode = status  # reaped here, behind Popen's back
            return status
    return None


def execute(run: Run, command: Any, wire: Any) -> dict[str, Any]:
    """Run a command in a run's code folder while the client listens; return {"exit", "signal"}, one of them None.

    Raises CommandError before it has begun, and what the wire raises when the client has gone; it is ended then.
    """
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise CommandError("bad-command", "%r is no command" % (command,))
    if not os.path.isdir(run.code):
        raise CommandError("no-code", "run %s has no code folder: its code never arrived" % run.id)
    return attend(partial(_start, run, command), wire)


def attend(start: Callable[[str], subprocess.Popen[bytes]], wire: Any) -> dict[str, Any]:
    """Start a program with pipes for its output and tell the client what it prints, until it has ended with all below it.

    `start` gets the token that the program must carry in its environment as MARK, so that a guard can end it when this
    process dies. Return {"exit", "signal"}, one of them None. Raises as `execute` does.
    """
    if process.own_descendants():  # a keeper, say: it must not be taken for one of the command's
        raise CommandError("busy", "this connection has started something else")
    process.become_subreaper()
    token = os.urandom(16).hex()
    with _start_guard(token) as guard:
        child = start(token)
        find_all = partial(_descendants_but, guard.pid)
        try:
            code, number = process.exit_of(_Listening(child, wire, find_all).run())
        finally:
            process.end(find_all, "descendant", GRACE_S)
            process.end(process.own_descendants, "descendant", 0.0)
            for pipe in (child.stdout, child.stderr):
                assert pipe is not None  # noqa: S101 - asked for with PIPE
                pipe.close()
    return {"exit": code, "signal": number}


def _start_guard(token: str) -> subprocess.Popen[bytes]:
    """Start the guard of a command that is about to begin. Its input ends with us, however we end."""
    return subprocess.Popen(
        [sys.executable, "-I", sys.argv[0], "guard", token],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _descendants_but(guard: int) -> list[process.Process]:
    """Return every process below this one but the guard, which stays to the last."""
    return [one for one in process.own_descendants() if one.pid != guard]


def _start(run: Run, command: list[str], token: str) -> subprocess.Popen[bytes]:
    runtime = {**(run.prepared().get("runtime") or {}), "gpus": run.cards()}
    try:
        return subprocess.Popen(
            native_command(command, interpreter_of(runtime)),
            cwd=run.code,
            env={**environment(run, runtime), MARK: token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CommandError("not-found", "there is no program %s" % command[0]) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in a word
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError("not-executable", "%s: %s" % (command[0], reason)) from None


class _Listening:
    """A command and the client that listens to it. What the client does not take yet stays in the command's pipes."""

    def __init__(
        self, child: subprocess.Popen[bytes], wire: Any, find_all: Callable[[], list[process.Process]]
    ) -> None:
        assert child.stdout is not None  # noqa: S101 - asked for with PIPE
        assert child.stderr is not None  # noqa: S101 - likewise
        self._child = child
        self._wire = wire
        self._find_all = find_all
        self._streams = {child.stdout.fileno(): 1, child.stderr.fileno(): 2}
        self._status: int | None = None
        self._ending: process.Ending | None = None
        self._is_ended = False

    def run(self) -> int:
        """Return the command's wait status, once it has ended with all that it started and all was told."""
        quiet_since = time.monotonic()
        while True:
            ready = self._wire.wait(list(self._streams), TURN_S)
            self._hear()
            for descriptor in ready or ():
                self._tell(descriptor)
            if ready or ready is None:  # None: the client is busy, and what waits for it is not silence
                quiet_since = time.monotonic()
            if self._status is None:
                self._status = reap(self._child)
            self._end_what_is_left()
            # A process that cannot be ended, or one that is not ours, may hold a pipe open for ever.
            is_told = not self._streams or time.monotonic() > quiet_since + QUIET_S
            if self._status is not None and self._is_ended and is_told:
                return self._status

    def _hear(self) -> None:
        while self._wire.has_input(0.0):
            if strict_json.decode(self._wire.read_line()).get("verb") == "end":
                self._ending = self._ending or process.Ending(self._find_all, "descendant", GRACE_S)
            elif self._wire.wait([], 0.0) is not None:  # there is room for an answer
                self._wire.write({"stream": 0})

    def _tell(self, descriptor: int) -> None:
        piece = os.read(descriptor, PIECE)
        if piece:
            self._wire.write({"stream": self._streams[descriptor]}, piece)
        else:
            del self._streams[descriptor]

    def _end_what_is_left(self) -> None:
        if self._status is not None and self._ending is None:
            self._ending = process.Ending(self._find_all, "descendant", GRACE_S)
        if self._ending is not None and not self._is_ended:
            self._is_ended = self._ending.step()
