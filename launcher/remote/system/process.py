"""Who is who on this host, and the one choke point that sends signals.

A process is ended only on proof that it is ours: our own descendant, or one that carries the run's token in its
environment, checked again by start time in the moment before the signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import re
import signal
import subprocess
import sys
import time
from typing import Any, Callable

IS_LINUX = sys.platform.startswith("linux")
KILL_WAIT_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36


def host_id() -> str:
    """Return 16 hex digits that stand for this host: its machine id and its name, hashed.

    A Mac has a hardware UUID, and a name that changes with its network: the UUID alone stands for it. A container has
    an id and a name of its own, so there it is told which host it is on.
    """
    told = os.environ.get("LAUNCH_HOST_ID")
    if told:
        return told
    if not IS_LINUX:
        told = _output_of(["ioreg", "-rd1", "-c", "IOPlatformExpertDevice"])
        found = re.search(r'"IOPlatformUUID" = "([^"]+)"', told)
        return hashlib.sha256((found[1] if found else platform.node()).encode()).hexdigest()[:16]
    machine = ""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        if not machine and os.path.exists(path):
            with open(path, encoding="ascii", errors="replace") as file:
                machine = file.read().strip()
    return hashlib.sha256((machine + "\n" + platform.node()).encode()).hexdigest()[:16]


def boot_id() -> str:
    """Return a text that changes with every boot of the host."""
    if IS_LINUX:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    return _output_of(["sysctl", "-n", "kern.boottime"]).strip()


def _output_of(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=10, check=False
        ).stdout
    except OSError:  # no such program here
        return ""


class Process:
    """A process of this host's table: pid, parent, start (a text that no reused pid shares), state letter."""

    def __init__(self, pid: int, parent: int, start: str, letter: str) -> None:
        """Hold what the table said."""
        self.pid = pid
        self.parent = parent
        self.start = start
        self.letter = letter

    def proof(self, why: str) -> dict[str, Any]:
        """Return what is put on record when this process is sent a signal."""
        return {"pid": self.pid, "start": self.start, "proof": why}


def keep_awake() -> None:
    """Keep a Mac from falling asleep while this process lives; no other host does that by itself."""
    if sys.platform == "darwin":
        words = ["caffeinate", "-i", "-w", str(os.getpid())]
        with contextlib.suppress(OSError):
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )


def find(pid: int) -> Process | None:
    """Return a process of the table, None where there is none of this pid."""
    if not IS_LINUX:
        return next((one for one in table() if one.pid == pid), None)
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:  # gone, or hidden from us (hidepid), and then not ours
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the command in brackets may hold anything
    return Process(pid, int(fields[1]), fields[19], fields[0])


def table() -> list[Process]:
    """Return all processes of this host that we may see."""
    if IS_LINUX:
        found = (find(int(name)) for name in os.listdir("/proc") if name.isdigit())
        return [one for one in found if one is not None]
    with subprocess.Popen(
        ["ps", "-axo", "pid=,ppid=,state=,lstart="], stdout=subprocess.PIPE, text=True
    ) as ps:
        listing, _ = ps.communicate(timeout=10)
    return read_listing(listing, ps.pid)


def read_listing(listing: str, without: int) -> list[Process]:
    """Return the processes of a BSD `ps` listing (pid, parent, state, start), but for `ps` itself."""
    rows = (line.split(None, 3) for line in listing.splitlines())
    found = (Process(int(row[0]), int(row[1]), row[3].strip(), row[2][0]) for row in rows if len(row) == 4)
    return [one for one in found if one.pid != without]


def descendants(pid: int) -> list[Process]:
    """Return every process below `pid`, zombies left out."""
    children: dict[int, list[Process]] = {}
    for one in table():
        children.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            queue.append(child.pid)
            if child.letter != "Z":
                found.append(child)
    return found


def with_token(token: str, variable: str = "LAUNCH_TOKEN") -> list[Process]:
    """Return our own user's processes whose environment carries a token, the run's unless another variable is named.

    Linux; elsewhere none is seen.
    """
    if not IS_LINUX:
        return []
    needle = (variable + "=" + token).encode()
    found = []
    for one in table():
        if one.letter == "Z" or one.pid == os.getpid():
            continue
        try:
            with open("/proc/%d/environ" % one.pid, "rb") as file:
                carries = needle in file.read().split(b"\0")
        except OSError:  # another user's, or gone meanwhile: not provably ours
            continue
        if carries:
            found.append(one)
    return found


def send(target: Process, number: int) -> bool:
    """Send a signal, if the pid is still the process that was proven to be ours. The only place that does."""
    now = find(target.pid)
    if now is None or now.start != target.start:
        return False
    try:
        os.kill(target.pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or become another user's (setuid)
        return False
    return True


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise. Linux; elsewhere no."""
    try:
        with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(masks and int(masks[0], 16) >> (number - 1) & 1)


def waits_for(pid: int) -> str | None:
    """Return the kernel's name of what a process waits for; None where it waits for nothing or that is not told."""
    try:
        with open("/proc/%d/wchan" % pid, encoding="ascii", errors="replace") as file:
            name = file.read().strip()
    except OSError:
        return None
    return None if name in ("", "0") else name


class Ending:
    """Ends every process that `find_targets` names, step by step, so that the caller can go on reading their pipes.

    SIGTERM at first, SIGKILL once the grace is over. Children are not reaped here: a zombie counts as ended. What is
    still there some time after SIGKILL (waiting for a disk or a driver in the kernel, or another user's by setuid) is
    waited for no longer: `remaining` names it.
    """

    def __init__(self, find_targets: Callable[[], list[Process]], why: str, grace_s: float) -> None:
        """Begin the grace now; `why` is the proof put on record."""
        self._find_targets = find_targets
        self._why = why
        self._deadline = time.monotonic() + grace_s
        self._sent: dict[tuple[int, str, int], dict[str, Any]] = {}
        self.remaining: list[dict[str, Any]] = []

    @property
    def proofs(self) -> list[dict[str, Any]]:
        """What was sent to whom, and why it was ours."""
        return list(self._sent.values())

    def step(self) -> bool:
        """Look once and signal whoever is left; return whether there is no more to wait for."""
        targets = self._find_targets()
        now = time.monotonic()
        number = signal.SIGTERM if now < self._deadline else signal.SIGKILL
        for target in targets:
            key = (target.pid, target.start, int(number))
            if key not in self._sent and send(target, number):
                self._sent[key] = dict(target.proof(self._why), signal=int(number))
        if now < self._deadline + KILL_WAIT_S:
            return not targets
        self.remaining = [dict(one.proof(self._why), state=one.letter) for one in targets]
        return True


def own_descendants() -> list[Process]:
    """Return every process below this one: ours by descent, if this process is a subreaper."""
    return descendants(os.getpid())


def end(find_targets: Callable[[], list[Process]], why: str, grace_s: float) -> list[dict[str, Any]]:
    """End every process that `find_targets` names, reaping children on the way; return the proofs.

    One that could not be ended is among them, without a signal, with its state in the process table.
    """
    ending = Ending(find_targets, why, grace_s)
    while not ending.step():
        reap_children()
        time.sleep(0.02)
    reap_children()
    return ending.proofs + ending.remaining


def reap_children() -> list[tuple[int, int]]:
    """Collect the children that have ended; return their (pid, wait status)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def become_subreaper() -> None:
    """Make orphans below this process its children, whatever they forked through. Linux; elsewhere nothing."""
    if IS_LINUX:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def exit_of(status: int) -> tuple[int | None, int | None]:
    """Return (exit code, signal) of a wait status; one of the two is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
