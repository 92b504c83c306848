"""Run Slurm's programs on a machine of its cluster: find them, clean their variables, limit their time."""

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
"""The longest time for an answer: a stuck controller makes `squeue` wait for 18 to 20 s."""
NAME_KEPT_S = 30.0
MAX_BYTES = 64 << 20
_FOLDERS = (
    "/usr/bin",
    "/usr/local/bin",
    "/opt/slurm/bin",
    "/usr/local/slurm/bin",
    "/cm/shared/apps/slurm/current/bin",
)
"""Where to find the programs if PATH lacks them: a command over SSH may run without the login's start-up files."""
_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCONTROL_")
_REACHING = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""The variables by which the programs find their cluster and authenticate."""
_DEFAULTS = tuple(
    "SBATCH_" + name
    for name in ("ACCOUNT", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION", "TIMELIMIT", "WCKEY")
)
"""The variables with which users choose where their jobs run."""
FREED = (
    'for name in $(env | sed -n "s/^\\([A-Z]*_[A-Z0-9_]*\\)=.*/\\1/p"); do case $name in '
    + "%s) ;; " % "|".join(_REACHING)
    + '%s) unset "$name";; esac; done; ' % "|".join(prefix + "*" for prefix in _PREFIXES)
)
"""Unsets a shell's variables that change `srun`: in a shell of `salloc` it would start a step of that job."""
_OF_JOB = re.compile(r"/slurm.*/job_[0-9]")
"""Matches the control groups of a process that Slurm started, or adopted into a job."""
_NAME = re.compile(r"^\s*ClusterName\s*=\s*([\w.-]+)", re.IGNORECASE | re.MULTILINE)


class SlurmSilentError(Exception):
    """Raised when a program is missing or did not answer in time; the message names it and the cause.

    `said` is its standard error up to then.
    """

    def __init__(self, message: str, said: str = "") -> None:
        """Store the output with the message."""
        super().__init__(message)
        self.said = said


class ProgramResult(NamedTuple):
    """The exit status of a program, and its output."""

    code: int
    text: str
    said: str


def ask(words: Sequence[str], timeout_s: float = ANSWER_S, given: str = "") -> ProgramResult:
    """Run one of Slurm's programs and return its answer. Raises SlurmSilentError.

    `given` is its standard input.
    """
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
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"")[-MAX_BYTES:].decode("utf-8", "replace")
        raise SlurmSilentError(_late(words, timeout_s), said) from None
    except OSError as error:
        raise SlurmSilentError("%s: %s" % (words[0], error.strerror)) from None
    texts = (stream[:MAX_BYTES].decode("utf-8", "replace") for stream in (ended.stdout, ended.stderr))
    return ProgramResult(ended.returncode, *texts)


def _late(words: Sequence[str], after_s: float) -> str:
    return "%s did not answer within %.3g s" % (title_of(words), after_s)


def variables() -> Dict[str, str]:
    """Return the variables for one of Slurm's programs, without those that change its output or its effect.

    The login may itself be inside a job, and `sbatch` passes on all variables that begin with SLURM_, also to
    an `srun` of the new job.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_PREFIXES) or name in (*_REACHING, *_DEFAULTS)
    }
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def title_of(words: Sequence[str]) -> str:
    """Return the title of a query: the program's name; for scontrol, its verb and object too."""
    return " ".join(words[:3] if words[0] == "scontrol" else words[:1])


def path_of(program: str) -> str:
    """Return the path of a program. Raises SlurmSilentError."""
    found = _find(program)
    if found is None:
        raise SlurmSilentError("%s was not found on %s: is it a login node?" % (program, os.uname().nodename))
    return found


def _find(program: str) -> Optional[str]:
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(_FOLDERS))


def cluster_name() -> str:
    """Return the name of the cluster that this machine belongs to; empty if it has none, or if unknown.

    The name is read from the programs' own configuration, which needs no controller. If that lacks the name, the
    controller is asked. If the controller does not answer, it is asked again after NAME_KEPT_S.
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


def node_name() -> str:
    """Return Slurm's name of this node."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def is_login_node() -> bool:
    """Whether this machine can submit jobs and this process is in no job; no program is started."""
    cgroups = read_text("/proc/self/cgroup") or ""
    if "SLURM_JOB_ID" in os.environ or _OF_JOB.search(cgroups):
        return False
    places = filter(None, (os.environ.get("SLURM_CONF"), *_CONFIGURATIONS))
    return _find("sbatch") is not None and any(os.path.exists(path) for path in places)


_RUNNING: Set[subprocess.Popen[bytes]] = set()
"""The programs that have not answered their query yet."""


@atexit.register
def _end_running() -> None:
    """Kill them with this process: otherwise a hung one stays on the login node."""
    for program in _RUNNING:
        program.kill()


class CachedQuery:
    """A repeated query whose answer is cached for a while; a late answer delays no caller for long."""

    def __init__(self, words: Sequence[str], kept_s: float, wait_s: float, silence_s: float) -> None:
        """Keep an answer `kept_s`, wait `wait_s` for a new one, and use the old one up to `silence_s`."""
        self._words = words
        self._kept_s, self._wait_s, self._silence_s = kept_s, wait_s, silence_s
        self._answer: Optional[str] = None
        self._answered_s = -float("inf")
        self._asked_s = -float("inf")
        self._why = ""
        self._program: Optional[subprocess.Popen[bytes]] = None
        self._output: Optional[IO[bytes]] = None

    def answer(self) -> str:
        """Return the answer, which may be a few seconds old. All calls together wait at most `wait_s` for one answer.

        Raises SlurmSilentError if it is missing or too old.
        """
        self.begin()
        deadline_s = self._asked_s + self._wait_s
        while self._program is not None and not self._collect() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if self._answer is not None and time.monotonic() - self._answered_s <= self._silence_s:
            return self._answer
        raise SlurmSilentError(self._why or "%s has not answered yet" % self._words[0])

    def is_late(self) -> bool:
        """Whether the running query has had its time without an answer."""
        return self._program is not None and time.monotonic() - self._asked_s > self._wait_s

    def begin(self) -> None:
        """Start the query if the last answer is too old and no query is running."""
        now = time.monotonic()
        if now - self._asked_s > self._kept_s and self._program is None:
            self._begin(now)

    def forget(self) -> None:
        """Drop the answer, so that the next call waits for a new one."""
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
        """Return the answer to a query that is started now. Raises SlurmSilentError."""
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
        """Read the answer of an ended program, or kill one that takes too long; return whether it is over."""
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
            text = self._output.read(MAX_BYTES).decode("utf-8", "replace")
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
