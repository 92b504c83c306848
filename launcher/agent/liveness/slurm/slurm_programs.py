"""Slurm's own programs, asked from a machine of its cluster: found, freed of what a user's variables would change, and timed."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from typing import IO, Dict, NamedTuple, Optional, Sequence, Set

from ...record.files import read_text

CONFIG = ("scontrol", "show", "config")
ANSWER_S = 20.0
"""How long an answer may take: a stuck controller lets `squeue` wait for 18 to 20 s."""
NAME_KEPT_S = 30.0
MOST_BYTES = 64 << 20
_FOLDERS = (
    "/usr/bin",
    "/usr/local/bin",
    "/opt/slurm/bin",
    "/usr/local/slurm/bin",
    "/cm/shared/apps/slurm/current/bin",
)
"""Where the programs are if PATH does not lead to them: a command over SSH may not read the login's own files."""
_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCONTROL_")
_REACHING = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""The variables by which the programs find their cluster, and show who asks."""
_DEFAULTS = tuple(
    "SBATCH_" + name
    for name in ("ACCOUNT", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION", "TIMELIMIT", "WCKEY")
)
"""The variables with which a user says where their jobs go."""
FREED = (
    'for name in $(env | sed -n "s/^\\([A-Z]*_[A-Z0-9_]*\\)=.*/\\1/p"); do case $name in '
    + "%s) ;; " % "|".join(_REACHING)
    + '%s) unset "$name";; esac; done; ' % "|".join(prefix + "*" for prefix in _PREFIXES)
)
"""Frees a shell of those that change what `srun` does: in a shell of `salloc` it would start a step of that job."""
_OF_JOB = re.compile(r"/slurm.*/job_[0-9]")
"""Is in the control groups of a process that Slurm started, or has adopted into a job."""
_NAME = re.compile(r"^\s*ClusterName\s*=\s*([\w.-]+)", re.IGNORECASE | re.MULTILINE)


class SlurmSilentError(Exception):
    """Raised when a program is missing, or did not answer in time; the message says which and why."""


class ProgramResult(NamedTuple):
    """How a program ended, and what it printed."""

    code: int
    text: str
    said: str


def ask(words: Sequence[str], timeout_s: float = ANSWER_S, given: str = "") -> ProgramResult:
    """Run a program of Slurm's and return its answer; `given` is its standard input. Raises SlurmSilentError."""
    try:
        ended = subprocess.run(
            [path_of(words[0]), *words[1:]],
            input=given.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables(),
            cwd="/",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmSilentError(_late(words, timeout_s)) from None
    except OSError as error:
        raise SlurmSilentError("%s: %s" % (words[0], error.strerror)) from None
    texts = (stream[:MOST_BYTES].decode("utf-8", "replace") for stream in (ended.stdout, ended.stderr))
    return ProgramResult(ended.returncode, *texts)


def _late(words: Sequence[str], after_s: float) -> str:
    return "%s did not answer within %.3g s" % (title_of(words), after_s)


def variables() -> Dict[str, str]:
    """Return the variables that a program of Slurm's gets: without those that change what it prints or does for us.

    A login may be within a job itself, and `sbatch` passes all that begins with SLURM_ on, to an `srun` of the new job too.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_PREFIXES) or name in (*_REACHING, *_DEFAULTS)
    }
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def title_of(words: Sequence[str]) -> str:
    """Return how a question is called: the program, of scontrol with what it is to do."""
    return " ".join(words[:3] if words[0] == "scontrol" else words[:1])


def path_of(program: str) -> str:
    """Return the path of a program. Raises SlurmSilentError."""
    found = _find(program)
    if found is None:
        raise SlurmSilentError("there is no %s on %s: is it a login node?" % (program, os.uname().nodename))
    return found


def _find(program: str) -> Optional[str]:
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(_FOLDERS))


def cluster_name() -> str:
    """Return the name of the cluster that this machine belongs to; empty if it belongs to none, or nothing tells.

    It is read where the programs read it: a controller need not answer. One that is asked all the same may answer later.
    """
    return _cluster_name(int(time.monotonic() / NAME_KEPT_S))


@functools.lru_cache(maxsize=1)
def _cluster_name(_period: int) -> str:
    if "SLURM_JOB_ID" in os.environ and os.environ.get("SLURM_CLUSTER_NAME"):
        return os.environ["SLURM_CLUSTER_NAME"].lower()
    for path in filter(None, (os.environ.get("SLURM_CONF"), *_CONFIGURATIONS)):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found = _NAME.search(file.read())
        except OSError:
            continue
        if found:
            return found[1].lower()
    try:
        said = ask(CONFIG, 5.0).text
    except SlurmSilentError:
        return ""
    found = _NAME.search(said)
    return found[1].lower() if found else ""


def is_login_node() -> bool:
    """Whether jobs can be submitted from this machine, and we are in none; no program is asked."""
    cgroups = read_text("/proc/self/cgroup") or ""
    if "SLURM_JOB_ID" in os.environ or _OF_JOB.search(cgroups):
        return False
    places = filter(None, (os.environ.get("SLURM_CONF"), *_CONFIGURATIONS))
    return _find("sbatch") is not None and any(os.path.exists(path) for path in places)


_RUNNING: Set[subprocess.Popen[bytes]] = set()
"""The programs that have not answered their question yet."""


@atexit.register
def _end_running() -> None:
    """End them with this process: one that hangs would be left on the login node."""
    for program in _RUNNING:
        program.kill()


class CachedQuery:
    """A question that is asked again and again, of which an answer is kept for a while; a late one delays nobody for long."""

    def __init__(self, words: Sequence[str], kept_s: float, wait_s: float, silence_s: float) -> None:
        """Keep an answer `kept_s`, wait for a new one `wait_s` at most, and take the last one for `silence_s` meanwhile."""
        self._words = words
        self._kept_s, self._wait_s, self._silence_s = kept_s, wait_s, silence_s
        self._answer: Optional[str] = None
        self._answered_s = -float("inf")
        self._asked_s = -float("inf")
        self._why = ""
        self._program: Optional[subprocess.Popen[bytes]] = None
        self._output: Optional[IO[bytes]] = None

    def answer(self) -> str:
        """Return the answer, which may be a few seconds old. Raises SlurmSilentError if there is none, or if it is too old."""
        self.begin()
        return self._answer_by(time.monotonic() + self._wait_s)

    def answer_at_hand(self) -> str:
        """Do the same, but however often this is called, wait for one answer `wait_s` in all."""
        self.begin()
        return self._answer_by(self._asked_s + self._wait_s)

    def begin(self) -> None:
        """Ask, if the last answer is too old, and if nothing is being asked."""
        now = time.monotonic()
        if now - self._asked_s > self._kept_s and self._program is None:
            self._begin(now)

    def _answer_by(self, deadline_s: float) -> str:
        while self._program is not None and not self._collect() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if self._answer is not None and time.monotonic() - self._answered_s <= self._silence_s:
            return self._answer
        raise SlurmSilentError(self._why or "%s has not answered yet" % self._words[0])

    def forget(self) -> None:
        """Wait for an answer to a question that is asked from now on, the next time."""
        self._end()
        self._asked_s = self._answered_s = -float("inf")

    def _end(self) -> None:
        if self._program is not None and self._output is not None:
            self._program.kill()
            self._program.wait()
            self._output.close()
            _RUNNING.discard(self._program)
        self._program = None

    def answer_now(self, timeout_s: float = ANSWER_S) -> str:
        """Return an answer to a question that is asked now. Raises SlurmSilentError."""
        self.forget()
        reply = ask(self._words, timeout_s)
        self._take(reply.code, reply.text, reply.said)
        self._asked_s = time.monotonic()
        if self._answer is None:
            raise SlurmSilentError(self._why)
        return self._answer

    def _begin(self, now: float) -> None:
        self._asked_s = now
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed once the program has ended
        try:
            self._program = subprocess.Popen(
                [path_of(self._words[0]), *self._words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=variables(),
                cwd="/",
            )
        except (OSError, SlurmSilentError) as error:
            self._output.close()
            self._why = str(error)
        else:
            _RUNNING.add(self._program)

    def _collect(self) -> bool:
        """Take the answer of a program that has ended, and end one that takes too long; return whether it is over."""
        assert self._program is not None and self._output is not None  # noqa: S101, PT018 - both or none
        code = self._program.poll()
        if code is None and time.monotonic() - self._asked_s > ANSWER_S:
            self._end()
            self._answer, self._why = None, _late(self._words, ANSWER_S)
            return True
        if code is None:
            self._why = "%s has not answered for %.0f s" % (self._words[0], time.monotonic() - self._asked_s)
            return False
        with self._output:
            self._output.seek(0)
            text = self._output.read(MOST_BYTES).decode("utf-8", "replace")
        _RUNNING.discard(self._program)
        self._program = None
        self._take(code, text, text)
        return True

    def _take(self, code: int, text: str, said: str) -> None:
        if code == 0:
            self._answer, self._answered_s, self._why = text, time.monotonic(), ""
        else:
            last = said.strip().splitlines()[-1:] or ["it ended with %d" % code]
            self._answer, self._why = None, "%s: %s" % (self._words[0], last[0][:200])
