"""Hand a command over to a process that stands by for it and has loaded already what commands need (`standing_by.py`).

That process gets the words and the variables, and says yes or no. After a yes it gets "go", with the working directory and standard
input, output and error; from then on signals are passed on to it, and this process ends as it does. Without a yes, the command runs here.

Each command loads this first, so it uses only what Python has loaded by itself: `signal` and `socket` take 8 ms.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has no stub for it
import _socket
import os
import sys
from types import FrameType

import launcher
from launcher import user_sockets

COMMAND = b'{"command": true}'
"""What is said first, as `held_socket.say` would."""
GO = b"g"
VERBS = frozenset({"attach", "logs", "ps", "run", "stop"})
"""Those of which a few in a row are usual, and which need no key of the terminal."""
DESCRIPTORS = 4
"""Standard input, output and error, and the working directory."""
YES_S = 0.5
"""How long it may take to say yes or no. One that is stopped does not."""
_SIZE = 4
_MOST_TEXT = 1 << 16
"""Bytes of a project's file that are looked at."""
_ENDING = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
_FORWARDED = (*_ENDING, _signal.SIGTSTP)


is_refused = False
"""Whether a process stands by, and would not have this command."""


class RefusedError(OSError):
    """A process that stands by says no."""


def hand_over() -> None:
    """End this process with the exit code of the command if another one runs it; return if none does."""
    global is_refused  # noqa: PLW0603 - of this process
    if not _is_usual(sys.argv[1:]):
        return
    path = user_sockets.standby(os.getsid(0))
    if not os.path.exists(path):
        return
    try:
        runner = _Runner(_offer(path))
    except OSError as error:
        is_refused = isinstance(error, RefusedError)
        if isinstance(error, (TimeoutError, ConnectionRefusedError)):
            _drop(path)
        return
    runner.run()


def _end_by(number: int) -> None:
    """End this process by a signal."""
    _signal.signal(number, _signal.SIG_DFL)
    _signal.raise_signal(number)


def _is_usual(words: list[str]) -> bool:
    """Whether the words are of a verb that is handed over. One that names a descriptor of this process is not, nor a completion, nor a launch that may send secrets."""
    verb = words[0] if words and not words[0].startswith("-") else "run"
    names = any("/dev/fd/" in word or "/proc/self/" in word for word in words)
    if verb not in VERBS or names or "_LAUNCH_COMPLETE" in os.environ:
        return False
    return not (verb == "run" and _may_send_secrets(words)) and _has_usual_files()


def _may_send_secrets(words: list[str]) -> bool:
    """Whether a launch names secrets, or takes them from a job's file, `--set` or a project's `on_end`, as far as that is clear from here."""
    if "--" not in words:
        return True  # the job of a file
    own = words[: words.index("--")]
    names = any(
        word.startswith(("--secret", "--env-file", "--set")) or (word[:1] == "-" != word[1:2] and "s" in word)
        for word in own
    )
    return names or _has_on_end()


def _has_on_end() -> bool:
    """Whether the project's file may have an `on_end`. One that cannot be read is for the command itself to report."""
    try:
        file = os.open("launch.toml", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        text = os.read(file, _MOST_TEXT)
        return (
            b"on_end" in text or b"\\" in text or len(text) == _MOST_TEXT
        )  # a key may be written with escapes
    except OSError:
        return True
    finally:
        os.close(file)


def _has_usual_files() -> bool:
    """Whether input, output and error are open, and we may read from our terminal: a job in the background would be stopped for that."""
    try:
        for number in range(3):
            os.fstat(number)
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # one is closed, or of another terminal than ours
        return False


def _offer(path: str) -> _socket.socket:
    """Return a stream to the process that stands by, over which it has been given the command. Raises OSError."""
    stream, _ = _connected(path)
    words = [os.fsencode(word) for word in sys.argv[1:]]
    variables = [name + b"=" + value for name, value in os.environb.items()]
    of_us = [os.fsencode(sys.prefix), os.fsencode(launcher.__file__), b"%d" % len(words)]
    for data in (COMMAND, b"\0".join([*of_us, *words, *variables, b""])):  # each part ends with a zero byte
        stream.sendall(len(data).to_bytes(_SIZE, "big") + data)
    return stream


def _connected(path: str) -> tuple[_socket.socket, int]:
    """Return a stream to the process that stands by, and its pid. Raises OSError."""
    user_sockets.check_socket(path)
    stream = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    stream.settimeout(YES_S)
    stream.connect(path)
    return stream, user_sockets.check_peer(stream)


def _drop(path: str) -> None:
    """Take away the socket of a process that does not answer: it ends with the commands that it runs. One that is stopped ends now."""
    pid = process = 0
    try:
        _, pid = _connected(path)
        process = os.pidfd_open(pid)
    except OSError:
        pass  # it was killed
    try:
        os.unlink(path)
        if process and user_sockets.is_stopped(pid):
            _signal.pidfd_send_signal(process, _signal.SIGKILL)
    except OSError:
        pass  # another command has


class _Runner:
    """The process that runs our command."""

    def __init__(self, stream: _socket.socket) -> None:
        """Wait for its yes. Raises OSError if it says no, or nothing in time."""
        self._stream = stream
        answer = _line(stream)
        if not answer.isdigit():
            raise RefusedError("the command is refused")
        self._process = os.pidfd_open(int(answer))
        self._last = 0

    def run(self) -> None:
        """Let it begin, pass signals on to it, and end this process as it ends. Return if it ended before it could begin."""
        before = {number: _signal.getsignal(number) for number in _FORWARDED}
        for number, way in before.items():
            if way != _signal.SIG_IGN:
                _signal.signal(number, self._forward)
        self._stream.settimeout(None)
        try:
            self._go()
        except OSError:
            if self._last in _ENDING:
                _end_by(self._last)
            for number, way in before.items():
                _signal.signal(number, way)
            return
        try:
            said = _line(self._stream)
        except OSError:
            said = b""
        if said.isdigit():
            os._exit(int(said))
        self._die()

    def _go(self) -> None:
        """Let it begin, with our open files. Raises OSError."""
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        rights = b"".join(number.to_bytes(_SIZE, sys.byteorder) for number in (0, 1, 2, folder))
        try:
            self._stream.sendmsg([GO], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        finally:
            os.close(folder)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._last = number
        try:
            _signal.pidfd_send_signal(self._process, number)
            if number == _signal.SIGTSTP:
                _signal.signal(number, _signal.SIG_DFL)
                _signal.raise_signal(number)  # stopped here until SIGCONT
                _signal.signal(number, self._forward)
                _signal.pidfd_send_signal(self._process, _signal.SIGCONT)
        except OSError:
            pass  # it has ended, as we hear next

    def _die(self) -> None:
        """End as a process does that ended without an exit code: by the signal that it got last, or as one that broke."""
        if self._last in _ENDING:
            _end_by(self._last)
        os.write(2, b"the process that ran this command has broken off\n  what it has done   launch ps\n")
        os._exit(1)


def _line(stream: _socket.socket) -> bytes:
    """Read up to the end of a line, which is short. Raises OSError."""
    line = b""
    while not line.endswith(b"\n"):
        piece = stream.recv(64)
        if not piece:
            raise ConnectionResetError("the process that stands by has gone")
        line += piece
    return line.strip()
