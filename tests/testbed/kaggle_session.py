"""A session of the stand-in for Kaggle: it really runs the pushed script, and ends all that it started at its limit.

As root it is a container in small: a root of its own, in which the script sees `/kaggle/input`, `/kaggle/working` and
`/kaggle/src`, pids of its own, and without internet a network of its own. Nothing of that is visible outside of it.
Without root it is a process group, and the folders are in LAUNCH_KAGGLE_INPUT and LAUNCH_KAGGLE_WORKING.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHUNK = 65_536

# $1: folder of the session; $2: `none` for a network of its own; the rest: the command.
_CONTAINER = """\
set -e
mount --make-rprivate /
root=$1/root
mkdir -p "$root"
mount -t tmpfs -o mode=755 tmpfs "$root"
for entry in /* ; do
    name=${entry#/}
    if [ "$name" = kaggle ] || [ "$name" = proc ]; then continue; fi
    if [ -L "$entry" ]; then cp -P "$entry" "$root/$name"
    elif [ -d "$entry" ]; then mkdir "$root/$name"; mount --rbind "$entry" "$root/$name"
    fi
done
mkdir -p "$root/proc" "$root/kaggle/input" "$root/kaggle/working" "$root/kaggle/src"
mount -t proc proc "$root/proc"
for name in input working src; do mount --bind "$1/$name" "$root/kaggle/$name"; done
mount -o remount,ro,bind "$root/kaggle/input"
if [ "$2" = none ]; then ip link set lo up; fi
shift 2
exec chroot "$root" /bin/sh -c 'cd /kaggle/working && exec "$@"' kernel "$@"
"""


class LogLine(NamedTuple):
    """A piece that the script has written: to which stream, and when, in seconds since the session began."""

    stream: str
    time: float
    data: str

    def json(self) -> dict[str, object]:
        """Return it in the service's words."""
        return {"stream_name": self.stream, "time": self.time, "data": self.data}


class Session:
    """One version of a kernel, from QUEUED to its end. `log` only grows; `changed` is notified of each change."""

    def __init__(self, folder: Path, source: str, limit_s: float, *, has_internet: bool) -> None:
        """Prepare its folders; `input` is the caller's to fill before `start`."""
        self.folder = folder
        self.status = "QUEUED"
        self.failure = ""
        self.log: list[LogLine] = []
        self.changed = threading.Condition()
        self.began: float | None = None
        self.ended: float | None = None
        self.limit_s = limit_s
        self.is_stuck = False  # then it is called running for ever
        self._has_internet = has_internet
        self._process: subprocess.Popen[bytes] | None = None
        self._is_cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        for name in ("input", "working", "src"):
            (folder / name).mkdir(parents=True)
        (folder / "src" / "script.py").write_text(source)

    @property
    def is_over(self) -> bool:
        """Whether it has reached its last status."""
        return self.status in ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")

    def used_s(self) -> float:
        """Return how long it has run so far, in seconds."""
        return 0.0 if self.began is None else (self.ended or time.monotonic()) - self.began

    def start(self, python: str, variables: Mapping[str, str], queued_s: float) -> None:
        """Run it in a thread of its own, after it has waited in the queue."""
        words = (python, dict(variables), queued_s)
        self._thread = threading.Thread(target=self._run, args=words, name=f"session {self.folder.name}")
        self._thread.start()

    def cancel(self) -> None:
        """End it, with all that it started, and wait until it is over."""
        self._is_cancelled.set()
        self._kill()
        if self._thread is not None:
            self._thread.join()

    def break_down(self) -> None:
        """Kill all that it started, as if its machine had died: it ends in an error."""
        self._kill()

    def _run(self, python: str, variables: dict[str, str], queued_s: float) -> None:
        if not self._is_cancelled.wait(queued_s):
            self.began = time.monotonic()
            with self.changed:
                self._process = self._popen(python, variables)
                self.status = "RUNNING"
                self.changed.notify_all()
            if self._is_cancelled.is_set():
                self._kill()  # `cancel` came before there was anything to kill
            self._follow(self._process)
            if self.is_stuck:
                self._is_cancelled.wait()
            self.ended = time.monotonic()
        with self.changed:
            if self._is_cancelled.is_set():
                self.status = "CANCEL_ACKNOWLEDGED"
            else:
                self.status = "ERROR" if self.failure else "COMPLETE"
            self.changed.notify_all()

    def _popen(self, python: str, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        env = {
            "PATH": PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            **variables,
        }
        if is_container():
            network = [] if self._has_internet else ["--net"]
            isolate = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *network]
            script = [python, "/kaggle/src/script.py"]
            words = [*isolate, "sh", "-c", _CONTAINER, "kernel", str(self.folder), _kind(network), *script]
        else:
            env["LAUNCH_KAGGLE_INPUT"] = str(self.folder / "input")
            env["LAUNCH_KAGGLE_WORKING"] = str(self.folder / "working")
            words = [python, str(self.folder / "src" / "script.py")]
        return subprocess.Popen(
            words,
            cwd=self.folder / "working",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Read what it writes until it ends, or its limit ends it."""
        pipes = {"stdout": process.stdout, "stderr": process.stderr}
        readers = [threading.Thread(target=self._read, args=pair) for pair in pipes.items()]
        for reader in readers:
            reader.start()
        try:
            code = process.wait(self.limit_s)
            self.failure = f"the script ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            self.failure = f"the session's limit of {self.limit_s:.0f} s"
        self._kill()  # in a container nothing outlives the first process; a group may
        process.wait()
        for reader in readers:
            reader.join()
        for pipe in pipes.values():
            pipe.close()  # type: ignore[union-attr]

    def _read(self, stream: str, pipe: object) -> None:
        began, held = self.began or 0.0, b""
        while data := os.read(pipe.fileno(), CHUNK):  # type: ignore[attr-defined]
            whole = held + data
            cut = _whole_characters(whole)
            held = whole[cut:]
            self._say(
                LogLine(stream, round(time.monotonic() - began, 6), whole[:cut].decode(errors="replace"))
            )
        if held:
            self._say(LogLine(stream, round(time.monotonic() - began, 6), held.decode(errors="replace")))

    def _say(self, line: LogLine) -> None:
        if line.data:
            with self.changed:
                self.log.append(line)
                self.changed.notify_all()

    def _kill(self) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)  # its own, from start_new_session
            except ProcessLookupError:
                pass


def is_container() -> bool:
    """Whether sessions get a root of their own here."""
    return os.geteuid() == 0 and shutil.which("unshare") is not None and shutil.which("ip") is not None


def _kind(network: list[str]) -> str:
    return "none" if network else "shared"


def _whole_characters(data: bytes) -> int:
    """Return where the last unfinished UTF-8 character of some bytes begins; their length, if there is none."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needs = 1 if byte < 0x80 else 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4
            return len(data) - back if needs > back else len(data)
    return len(data)
