"""The processes of this host, and the only function that sends signals.

A process is ended only on proof that it belongs to the run: it descends from this process, or carries the
run's token in its variables and was not handed over (process_lineage.py). Its start time is checked again
right before the signal.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from typing import Callable, TypedDict

IS_LINUX = sys.platform.startswith("linux")
KILL_WAIT_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4  # one of the kernel's process flags
_SERVERS = {"tmux: server": "tmux", "screen": "screen", "zellij": "zellij", "tsp": "tsp"}
_BOUND = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):  # it may have ended before
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def host_id() -> str:
    """Return 16 hex digits that identify this host: a hash of its machine id and its name.

    On a Mac it is a hash of the hardware UUID only, because the name changes with the network. A container
    has another machine id and name, so there the host's id is passed in LAUNCH_HOST_ID.
    """
    given = os.environ.get("LAUNCH_HOST_ID")
    if given:
        return given
    if not IS_LINUX:
        listing = _output_of(["ioreg", "-rd1", "-c", "IOPlatformExpertDevice"])
        uuid = re.search(r'"IOPlatformUUID" = "([^"]+)"', listing)
        return hashlib.sha256((uuid[1] if uuid else os.uname().nodename).encode()).hexdigest()[:16]
    machine = ""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        if not machine and os.path.exists(path):
            with open(path, encoding="ascii", errors="replace") as file:
                machine = file.read().strip()
    return hashlib.sha256((machine + "\n" + os.uname().nodename).encode()).hexdigest()[:16]


def is_in_container() -> bool:
    """Whether this process is in one of the launcher's containers, which get the host's id."""
    return "LAUNCH_HOST_ID" in os.environ


def boot_id() -> str:
    """Return a text that is different after every boot of the host."""
    if IS_LINUX:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    return _output_of(["sysctl", "-n", "kern.boottime"]).strip()


def _output_of(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=10, check=False
        ).stdout
    except OSError:  # the program is missing
        return ""


class _Proven(TypedDict):
    pid: int
    start: str
    proof: str


class ProcessProof(_Proven, total=False):
    """The recorded proof that a process belonged to a run.

    `signal` is the signal that it got, `state` the state in which it survived.
    """

    signal: int
    state: str


class Process:
    """An entry of the process table: pid, parent, start time (different if the pid is reused), state letter.

    `name` is the kernel's, at most 15 characters; a process may change it. `is_exiting`: the kernel is ending
    it, and its variables are gone. Both are known only on Linux.
    """

    def __init__(
        self, pid: int, parent: int, start: str, letter: str, name: str = "", *, is_exiting: bool = False
    ) -> None:
        """Store the entry."""
        self.pid = pid
        self.parent = parent
        self.start = start
        self.letter = letter
        self.name = name
        self.is_exiting = is_exiting

    def proof(self, why: str, number: int | None = None) -> ProcessProof:
        """Return the record of a signal to this process; without `number`, the record has no signal."""
        found: ProcessProof = {"pid": self.pid, "start": self.start, "proof": why}
        if number is not None:
            found["signal"] = int(number)
        return found


def bound_to_us(words: list[str]) -> list[str]:
    """Return the command line of a program that the kernel kills when this process ends in any way.

    An interpreter requests that and then becomes the program: code between a fork and the program's start
    could hang if this process has threads. Outside Linux the command line is returned unchanged.
    """
    return [sys.executable, "-ISc", _BOUND, str(os.getpid()), *words] if IS_LINUX else words


def keep_awake() -> None:
    """Keep a Mac awake while this process lives. Other hosts do not go to sleep unasked."""
    if sys.platform == "darwin":
        words = ["caffeinate", "-i", "-w", str(os.getpid())]
        with contextlib.suppress(OSError):
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )


def find(pid: int) -> Process | None:
    """Return the process with this pid, None if it does not exist."""
    if not IS_LINUX:
        return next((process for process in table() if process.pid == pid), None)
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:  # gone, or hidden by hidepid and thus another user's
        return None
    name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    is_exiting = bool(int(fields[6]) & _PF_EXITING)
    return Process(pid, int(fields[1]), fields[19], fields[0], name, is_exiting=is_exiting)


def age_s(start: str) -> float | None:
    """Return the age of a process in seconds by the boot clock; None outside Linux.

    `start` is its start time in ticks after the boot.
    """
    try:
        began_s = int(start) / os.sysconf("SC_CLK_TCK")
        return round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s), 1)
    except (AttributeError, ValueError, OSError):
        return None


def table() -> list[Process]:
    """Return all visible processes of this host."""
    if IS_LINUX:
        entries = (find(int(name)) for name in os.listdir("/proc") if name.isdigit())
        return [entry for entry in entries if entry is not None]
    with subprocess.Popen(
        ["ps", "-axo", "pid=,ppid=,state=,lstart="], stdout=subprocess.PIPE, text=True
    ) as ps:
        listing, _ = ps.communicate(timeout=10)
    return read_listing(listing, ps.pid)


def read_listing(listing: str, without: int) -> list[Process]:
    """Return the processes of a BSD `ps` listing (pid, parent, state, start), except `ps` itself."""
    rows = (line.split(None, 3) for line in listing.splitlines())
    entries = (Process(int(row[0]), int(row[1]), row[3].strip(), row[2][0]) for row in rows if len(row) == 4)
    return [entry for entry in entries if entry.pid != without]


def server_of(found: Process) -> str | None:
    """Return the program of a background server that a user started, e.g. `tmux`; None for other processes.

    It is recognized by its name. As `screen` is an ordinary word, its server must also have the first word
    `SCREEN`, which cannot be read safely for a process that waits in the kernel.
    """
    program = _SERVERS.get(found.name)
    if program == "screen" and found.letter != "D":
        try:
            with open("/proc/%d/cmdline" % found.pid, "rb") as file:
                return program if file.read(6) == b"SCREEN" else None
        except OSError:
            return None
    return program


def descendants(pid: int) -> list[Process]:
    """Return every descendant of `pid` except zombies, background servers and their descendants."""
    return _below(pid)[0]


def servers_below(pid: int) -> list[Process]:
    """Return the background servers that descend from `pid`: their descendants have been handed over to them."""
    return _below(pid)[1]


def _below(pid: int) -> tuple[list[Process], list[Process]]:
    """Return the descendants of a process outside background servers, and the servers."""
    children: dict[int, list[Process]] = {}
    for process in table():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    servers: list[Process] = []
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            if server_of(child) is not None:
                servers.append(child)
                continue
            queue.append(child.pid)
            if not _has_ended(child):
                found.append(child)
    return found, servers


def _has_ended(found: Process) -> bool:
    """Whether a process is a zombie. A process whose first thread has ended looks like one, but still runs."""
    if found.letter != "Z":
        return False
    try:
        return len(os.listdir("/proc/%d/task" % found.pid)) <= 1
    except OSError:  # gone, or not on Linux
        return True


def words_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if it is gone, and outside Linux."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def variables_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with; empty if it is gone, and outside Linux."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0")]
    except OSError:
        return {}
    return {name: value for name, _, value in pairs if name}


def send(target: Process, number: int) -> bool:
    """Send a signal if the pid still belongs to the proven process. All signals are sent here.

    With a descriptor of the process (Linux 5.3, Python 3.9) no other process can take its pid between check
    and signal.
    """
    try:
        descriptor = os.pidfd_open(target.pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    except OSError:  # an older kernel, a sandbox, or too many open descriptors
        descriptor = None
    try:
        now = find(target.pid)
        if now is None or now.start != target.start:
            return False
        if descriptor is None:
            os.kill(target.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):  # gone, or now another user's (setuid)
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def catches(pid: int, number: int) -> bool:
    """Return whether a process handles a signal instead of being ended by it. Always false outside Linux."""
    try:
        with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(masks and int(masks[0], 16) >> (number - 1) & 1)


def waits_for(pid: int) -> str | None:
    """Return the kernel function that a process waits in; None if it does not wait or this is unknown."""
    try:
        with open("/proc/%d/wchan" % pid, encoding="ascii", errors="replace") as file:
            name = file.read().strip()
    except OSError:
        return None
    return None if name in ("", "0") else name


class ProcessTermination:
    """Ends every process that `find_targets` returns, step by step: the caller can keep reading their pipes.

    It sends SIGTERM first and SIGKILL after the grace period. Children are not reaped here: a zombie counts
    as ended. Processes that survive SIGKILL for KILL_WAIT_S (in the kernel for a disk or a driver, or another
    user's by setuid) are given up and listed in `remaining`.
    """

    def __init__(self, find_targets: Callable[[], list[Process]], why: str, grace_s: float) -> None:
        """Start the grace period now. `why` is the proof to record."""
        self._find_targets = find_targets
        self._why = why
        self._deadline = time.monotonic() + grace_s
        self._sent: dict[tuple[int, str, int], ProcessProof] = {}
        self.remaining: list[ProcessProof] = []

    @property
    def proofs(self) -> list[ProcessProof]:
        """The signals sent, each with its process and the proof that it belongs to the run."""
        return list(self._sent.values())

    def step(self) -> bool:
        """Look once and signal the remaining processes. Return whether the termination is over."""
        targets = self._find_targets()
        now = time.monotonic()
        number = signal.SIGTERM if now < self._deadline else signal.SIGKILL
        for target in targets:
            key = (target.pid, target.start, int(number))
            if key not in self._sent and send(target, number):
                self._sent[key] = target.proof(self._why, number)
                if target.letter == "T":  # a stopped process handles no SIGTERM
                    send(target, signal.SIGCONT)
        if now < self._deadline + KILL_WAIT_S:
            return not targets
        self.remaining = [{**target.proof(self._why), "state": target.letter} for target in targets]
        return True


def own_descendants() -> list[Process]:
    """Return every descendant of this process, which must be a subreaper to have them all."""
    return descendants(os.getpid())


def end(find_targets: Callable[[], list[Process]], why: str, grace_s: float) -> list[ProcessProof]:
    """End every process that `find_targets` returns, and reap children while waiting. Return the proofs.

    A process that could not be ended is included without a signal, but with its state in the process table.
    """
    ending = ProcessTermination(find_targets, why, grace_s)
    while not ending.step():
        reap_children()
        time.sleep(0.02)
    reap_children()
    return ending.proofs + ending.remaining


def reap_children() -> list[tuple[int, int]]:
    """Reap the children that have ended. Return their (pid, wait status)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def ignore_terminations() -> None:
    """Ignore SIGTERM and SIGINT until this process ends.

    Otherwise a signal that arrives while Python exits would kill it, because Python restores the default
    handlers first.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def adopter() -> Process | None:
    """Return the process that adopts orphans of this one: init, or a subreaper such as Slurm's step daemon.

    No kernel call answers this, so an orphan is made, which reads its new parent. This process must not be a
    subreaper and must have no threads.
    """
    if not IS_LINUX:
        return None
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            middle = os.getpid()
            if os.fork() == 0:
                while os.getppid() == middle:  # until `middle` has exited, which takes microseconds
                    time.sleep(0.0005)
                os.write(writing, b"%d" % os.getppid())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(middle, 0)
    with open(reading, "rb") as answer:
        pid = int(answer.read() or 0)
    return find(pid)  # 0: it is outside this namespace


def become_subreaper() -> None:
    """Make this process adopt all orphans among its descendants. Does nothing outside Linux."""
    if IS_LINUX:
        import ctypes  # few processes need it

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def exit_of(status: int) -> tuple[int | None, int | None]:
    """Return (exit code, signal) of a wait status. One of them is None."""
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
