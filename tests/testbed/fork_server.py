"""Runs `launch …` in processes that are forked from one that has imported the launcher already.

To import it is half of a client's time. Each command is still a process of its own, with its own session, folder, variables
and pipes. Commands that are measured, or that change what Python imports, start a new Python.

Pictures are drawn here too, by the matplotlib that was imported in `/`: a new process for each takes 1.0 s of CPU time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import launcher

TRAVELLING = ("agent", "worker")
"""The packages of the launcher that a client does not import."""
LIBRARIES = ("matplotlib.figure", "matplotlib.backends.backend_agg", "rich.live", "rich.table", "fabric")
PROGRAM = "from launcher.cli import main; main()"
"""What a client runs; a test may give another program that ends with main()."""
LONGEST_REQUEST = 1 << 20
KEPT = ("PATH", "LANG", "LC_", "PYTHON")


class ForkServer:
    """A process that forks a client for each command; it ends with this process."""

    def __init__(self, folder: str, **variables: str) -> None:
        """Start it with these variables; `folder` keeps matplotlib's list of fonts, and is removed at the end."""
        self._folder = folder
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        # A test's own variables are its client's alone.
        kept = {name: os.environ[name] for name in os.environ if name.startswith(KEPT)}
        environment = {**kept, "MPLCONFIGDIR": folder, **variables}
        self._process = subprocess.Popen(
            command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()

    def run(
        self,
        words: list[str],
        cwd: str,
        env: dict[str, str],
        timeout: float,
        *,
        program: str = PROGRAM,
        is_merged: bool = False,
    ) -> tuple[int, str, str]:
        """Run `python -c PROGRAM WORDS` to its end; return its exit code and what it printed. Raises TimeoutExpired and kills it.

        `is_merged`: both streams are the first pipe, as they are on a terminal.
        """
        out, out_there = os.pipe()
        err, err_there = os.pipe()
        streams = (out_there, out_there if is_merged else err_there)
        status = self.start(words, cwd, env, streams, program=program)
        for descriptor in (out_there, err_there):
            os.close(descriptor)
        try:
            printed = _read([out, err, status], time.monotonic() + timeout)
        finally:
            for descriptor in (out, err, status):
                os.close(descriptor)
        pid, _, code = printed[status].partition(b" ")
        if not code:
            with contextlib.suppress(ProcessLookupError, ValueError):  # no pid: it has not begun
                os.kill(int(pid), signal.SIGKILL)
            raise subprocess.TimeoutExpired(["launch", *words], timeout, printed[out], printed[err])
        return int(code), printed[out].decode(), printed[err].decode()

    def start(
        self,
        words: list[str],
        cwd: str,
        env: dict[str, str],
        streams: tuple[int, int],
        *,
        program: str = PROGRAM,
    ) -> int:
        """Start the same, which writes to these two files, and reads from the first if that is a terminal.

        Return a pipe that says its pid and, once it has ended, a blank and its exit code.
        """
        status, status_there = os.pipe()
        umask = os.umask(0)
        os.umask(umask)
        request = {"program": program, "words": words, "cwd": cwd, "env": env, "umask": umask}
        socket.send_fds(self._ours, [json.dumps(request).encode()], [*streams, status_there])
        os.close(status_there)
        return status

    def end(self) -> None:
        """End the server; clients that still run go on."""
        self._ours.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _read(descriptors: list[int], deadline: float) -> dict[int, bytes]:
    """Return what pipes give until all have ended, or until the deadline."""
    read = dict.fromkeys(descriptors, b"")
    pending = list(descriptors)
    while pending and (left := deadline - time.monotonic()) > 0:
        for ready in select.select(pending, [], [], left)[0]:
            piece = os.read(ready, 1 << 16)
            read[ready] += piece
            if not piece:
                pending.remove(ready)
    return read


def _serve(channel: socket.socket) -> None:
    for package in pkgutil.iter_modules(launcher.__path__, "launcher."):
        if package.name.rpartition(".")[2] in TRAVELLING:
            continue
        root = importlib.import_module(package.name)
        for module in pkgutil.walk_packages(getattr(root, "__path__", ()), f"{root.__name__}."):
            importlib.import_module(module.name)
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()  # no client goes through what all have
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, LONGEST_REQUEST, 3)
        if not request:
            return
        if os.fork() == 0:  # one that waits for the client, so that the server never does
            channel.close()
            _wait_for_client(json.loads(request), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass


def _wait_for_client(request: dict[str, object], descriptors: list[int]) -> None:
    out, err, status = descriptors
    client = os.fork()
    if client == 0:
        os.close(status)
        _become_client(request, out, err)
    os.close(out)
    os.close(err)
    os.write(status, b"%d " % client)
    code = os.waitstatus_to_exitcode(os.waitpid(client, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, b"%d" % code)
    os._exit(0)


def _become_client(request: dict[str, object], out: int, err: int) -> None:
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    if os.isatty(1):
        os.dup2(1, 0)
    os.closerange(3, 64)
    # Those of this process were made for other files.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    os.chdir(str(request["cwd"]))
    os.umask(int(request["umask"]))  # type: ignore[call-overload]
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[arg-type]
    time.tzset()
    if os.environ.get("SIM_CLOCK"):
        sys.path.append(str(Path(__file__).resolve().parents[1]))
        from testbed.sim_clock import wait_by_it

        wait_by_it()
    sys.argv = ["-c", *request["words"]]  # type: ignore[misc]
    from launcher.compare import compared_curves
    from launcher.metrics import picture

    for module in (compared_curves, picture):
        module.drawn = _draw_here

    code: object = 0
    try:
        exec(str(request["program"]), {"__name__": "__main__"})  # noqa: S102 - a test's own program
    except SystemExit as error:  # any other error ends this process as it ends Python
        code = error.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
    with contextlib.suppress(OSError, ValueError):  # a reader that has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _draw_here(draw: Callable[..., bytes], *arguments: object) -> bytes:
    return draw(*arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _serve(socket.socket(fileno=int(sys.argv[1])))
