"""The agent's verb `job RUN`: the script of a run's job, from its start by Slurm to its end.

It starts the run's agent as a step of the job, and again if the agent dies. Two signals have different
meanings. USR1, sent only to the script, comes from the launcher: the job's time is nearly up, so the run
saves and the job is started again; or a client has written a wish that the agent should read now. TERM comes
from Slurm, which ends the job because it was cancelled, reached a limit, or must make room for another job.
The run then saves, and the script starts nothing again, because that would bring back a cancelled job.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Iterator, List, Optional

from ..cards.allowed_cards import UnfitError, choose_cards, read_cards
from ..liveness.native.native_liveness import agent_of
from ..liveness.slurm import slurm_jobs, slurm_submission
from ..liveness.slurm.slurm_programs import SlurmSilentError, ask, node_name
from ..record import strict_json
from ..record.files import read_text, write_durably
from ..record.rundir import TERMINAL, Run
from ..serving import contact
from ..serving.requests import RequestError
from ..store import worker_folder
from ..system import process, token_processes
from ..training.keeper import HEALTHY_S, back_off_s, handed_on, pause, size_of, tail_of
from ..training.supervise import RESTART
from .node_python import check_python

if TYPE_CHECKING:
    from ..record.run_records import PreviousRecord, StateRecord

MAX_FAILURES = 20
"""The most agents in a row that may die: the node may be broken, and only Slurm can assign another."""
TURN_S = 1.0
LEAVING_S = 600.0
"""How long Slurm may take to end a job after it has ended a step: the longest usual grace."""
LOOK_S = 5.0
MEMBERS_S = 1800.0
"""How long the members of a dead agent may take to end, or Slurm to confirm it, before the job ends with them."""
_OTHER_CARDS = (
    "ask for these cards by `gres` or `constraint`; "
    "if you named a profile, --profile auto plans for all cards that the partition names"
)
_NO_CARD = (
    "leave out the node   --set 'slurm.extra=[\"--exclude=%s\"]'     or train without a card   --profile cpu"
)
OF_SCRIPT = "LAUNCH_SLURM"
"""The variable that gives the agent Slurm's variables of the job's script, as JSON."""
_OF_SUBMISSION = ("SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV", "SLURM_OPEN_MODE", "SLURM_TIME_FORMAT")
"""Variables that the flags of our `sbatch` leave to the job, where they would change the run's own `srun`.

By SLURM_EXPORT_ENV=NIL, it would start its programs without variables, even without PATH.
"""
_OF_SLURM = ("SLURM_", "SRUN_", "PMI_", "PMIX_")
"""Prefixes of the variables that `srun` sets or replaces in a step."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(arguments: List[str]) -> int:
    """Keep a run in this job until the run or the job has ended. Return the job's exit status."""
    run = Run(os.path.abspath(arguments[0]))
    job = os.environ.get("SLURM_JOB_ID", "")
    if not os.path.exists(run.plan):
        _say("the folder of run %s is gone: there is nothing to do" % run.id)
        return 0
    if not slurm_submission.claim(run, job):
        _say("run %s has another job: there is nothing to do" % run.id)
        return 0
    complete_variables()
    with contextlib.suppress(OSError):  # Slurm's own report takes precedence
        slurm_submission.erase_end(run)
    with contextlib.suppress(OSError):  # shows a later probe that nodes see this root
        os.makedirs(os.path.join(run.root, "hosts", process.host_id()), exist_ok=True)
    worker_folder.unpack(sys.argv[0])
    with _signals() as signals:
        return _Keeping(run, job, signals).keep()


def _say(words: str) -> None:
    sys.stderr.write("launch: %s\n" % words)
    sys.stderr.flush()


def complete_variables() -> None:
    """Set the variables that a login would have set: the job inherits none. Remove those of our own `sbatch`."""
    for name in _OF_SUBMISSION:
        os.environ.pop(name, None)
    user = pwd.getpwuid(os.getuid())
    given = {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
        "PATH": PATH,
    }
    for name, value in given.items():
        os.environ.setdefault(name, value)


def status_of(state: StateRecord) -> int:
    """Return the exit status of a job from the recorded state of its run.

    It is the script's own for a run that failed by it, 0 for one that succeeded, and RESTART for one that has
    not ended, such as one that waits for a client.
    """
    if state.get("state") == "succeeded":
        return 0
    if state.get("state") not in TERMINAL:
        return RESTART
    evidence = state.get("evidence") or {}
    code, number = evidence.get("exit"), evidence.get("signal")
    if isinstance(number, int) and 0 < number < 128:
        return 128 + number
    return code if isinstance(code, int) and 0 < code < 256 else 1


def take_variables_of_script() -> None:
    """Set Slurm's variables as the job's script has them; those of a step describe a single process."""
    written = os.environ.pop(OF_SCRIPT, None)
    if written is None:
        return
    for name in [name for name in os.environ if name.startswith(_OF_SLURM)]:
        del os.environ[name]
    os.environ.update(strict_json.decode(written))


class _Signals:
    """The received signals, and a descriptor that is ready once one has arrived."""

    def __init__(self, ready: int) -> None:
        self.ready = ready
        self.is_over = False
        """Slurm has decided that the job ends."""
        self.is_told = False
        """The script was notified that time is nearly up, or of a wish."""

    def has_any(self) -> bool:
        """Whether one of the two signals has arrived."""
        return self.is_over or self.is_told

    def pause(self, seconds: float) -> None:
        """Wait for this time, or until Slurm ends the job."""
        deadline = time.monotonic() + seconds
        while not self.is_over and (left := deadline - time.monotonic()) > 0:
            self.wait(left)

    def wait(self, seconds: float) -> None:
        """Wait for a signal, or for the end of a child."""
        if select.select([self.ready], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self.ready, 4096)


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    found = _Signals(ends[0])
    signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)

    def note(number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            found.is_told = True
        elif number == signal.SIGTERM:
            found.is_over = True

    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, note)
    try:
        yield found
    finally:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # Python, as it exits, would restore what ends the process


class _Keeping:
    """A run in its job."""

    def __init__(self, run: Run, job: str, signals: _Signals) -> None:
        self._run = run
        self._job = job
        self._signals = signals
        self._settings = slurm_submission.settings_of(run)

    def keep(self) -> int:
        """Start the run's agent until none is needed. Return the job's exit status."""
        if self._has_ended_before() or not self._fits_node():
            return self._status()
        # If all keepers of the run were killed at once, Slurm may start the job again on the node where the
        # training still runs.
        ended = contact.end_leftovers(self._run, 0.0)
        if ended:
            pids = ", ".join(str(proof["pid"]) for proof in ended)
            _say("ended processes of an earlier start of the job on this node: pid %s" % pids)
        code = self._keep_agents()
        if code == RESTART and self._signals.is_over:
            self._note_end()
        return code or self._status()

    def _has_ended_before(self) -> bool:
        """Whether Slurm has started the job of an ended run again, as a cluster's `RequeueExit` makes it do.

        The job is cancelled then: it would be started again after each end.
        """
        last = self._run.last()
        if last is None or last.read_state().get("state") not in TERMINAL:
            return False
        if int(os.environ.get("SLURM_RESTART_COUNT") or 0):
            slurm_submission.cancel(self._job)
        return True

    def _status(self) -> int:
        """Return the exit status of a job whose run needs no other agent: what Slurm reports to its user.

        The job of a stopped run is cancelled, because any exit status would show as COMPLETED or FAILED.
        """
        last = self._run.last()
        state = last.read_state() if last is not None else {}
        is_stopped = state.get("state") == "stopped"
        if is_stopped or (state.get("state") not in TERMINAL and self._run.read_wish() != "run"):
            refused = slurm_submission.cancel(self._job)
            if refused:
                _say("the job of a stopped run is not cancelled: %s" % refused)
        return status_of(state)

    def _keep_agents(self) -> int:
        """Start agents until the run needs none, and return 0; if the job ends first, return its exit status."""
        seen: Optional[PreviousRecord] = None
        is_first = True
        failures = 0
        while not self._signals.is_over and os.path.exists(self._run.plan):
            # Slurm has ended all steps before it started the job again.
            ended = None if is_first else self._ended_beside_members()
            if ended is not None:
                return ended
            is_first = False
            began_s, said_before = time.monotonic(), size_of(self._run.slurm_log)
            code = self._run_agent(seen)
            if code == 0:
                return 0
            if code == RESTART:
                if self._is_over_for_us():
                    break
                seen = None
                continue
            failures = 0 if time.monotonic() - began_s > HEALTHY_S else failures + 1
            if failures >= MAX_FAILURES:
                _say("the agent has died %d times in a row" % failures)
                return 1
            words = tail_of(self._run.slurm_log, said_before)
            # The leftovers get no grace: without an agent, their further steps would not be recorded.
            proofs = contact.end_leftovers(self._run, 0.0)
            seen = {"keeper": {"exit": code, "signal": None, "ended": proofs, "said": words}}
            pause(back_off_s(failures), self._run, lambda: self._signals.is_over)
        return RESTART

    def _note_end(self) -> None:
        """Record how Slurm ends this job, which Slurm may forget; record nothing if it will start the job again.

        A later report from Slurm itself takes precedence.
        """
        with contextlib.suppress(SlurmSilentError, OSError):
            text = ask([*slurm_jobs.SHOW, self._job]).text
            if slurm_jobs.restarts(text) <= int(os.environ.get("SLURM_RESTART_COUNT") or 0):
                slurm_submission.note_end(self._run, self._job, slurm_jobs.reason_of_end(text))

    def _fits_node(self) -> bool:
        """Whether the Python and the cards of this node match the plan. If they do not, the run has failed."""
        run = self._run
        try:
            allowed = [read_cards(one) for one in self._settings.get("cards") or ()]
            node = node_name()
            check_python(run, node)
            came = choose_cards(run.root, allowed, "node %s" % node, _OTHER_CARDS, _NO_CARD % node)
        except UnfitError as error:
            _say("%s: %s" % (error.reason, error))
            with contextlib.suppress(RequestError):
                contact.settle(run, "failed", error.reason, evidence=error.evidence).release()
            return False
        if came is not None:
            _say("%s came" % came.allowed.title)
        if came is not None and came.allowed.plan:
            write_durably(run.plan, strict_json.encode({**run.read_plan(), **came.allowed.plan}) + "\n")
        return True

    def _run_agent(self, seen: Optional[PreviousRecord]) -> int:
        """Start the agent as a step of the job, handle signals until it has ended, and return its exit status."""
        words = [sys.executable, "-I", sys.argv[0], "step", self._run.path]
        # Like a keeper's variables, these prove that the agent belongs to the launcher, whatever its
        # ancestors are.
        own = {token_processes.OF_RUN: read_text(self._run.token) or "", token_processes.OF_KEEPER: "1"}
        of_script = {name: value for name, value in os.environ.items() if name.startswith(_OF_SLURM)}
        of_script["SLURM_SUBMIT_DIR"] = str(self._run.code)  # where a job script looks for its files
        own[OF_SCRIPT] = strict_json.encode(of_script)
        variables = {**os.environ, **own, **handed_on(seen)}
        if (cpus := os.environ.get("SLURM_CPUS_PER_TASK")) is not None:
            variables["SRUN_CPUS_PER_TASK"] = cpus  # since 22.05 srun ignores the job's value
        step = subprocess.Popen([*STEP, *words], stdin=subprocess.DEVNULL, env=variables)
        passed: List[int] = []
        while step.poll() is None:
            self._signals.wait(TURN_S)
            due = (
                signal.SIGUSR1 if self._signals.is_told else signal.SIGTERM if self._signals.is_over else None
            )
            if due is not None and due not in passed and self._signal_agent(due):
                passed.append(due)
        return step.returncode if step.returncode >= 0 else 128 - step.returncode

    def _ended_beside_members(self) -> Optional[int]:
        """End the members that an earlier agent has left.

        Returns the job's exit status if the job ends first, and None if an agent may start. A wish to stop
        ends the run without another agent: the job ends, and the remaining members with it.
        """
        while not self._end_members():
            if self._signals.is_over:
                return RESTART
            if self._run.read_wish() != "run":
                return 0
            if not self._signals.is_told:
                return 1
            if self._is_over_for_us():
                return RESTART
        return None

    def _end_members(self) -> bool:
        """End the members that an earlier agent has left on any node of this job.

        Returns whether another agent may start. A member ends with its agent, unless it is stopped: then its
        ranks would train beside the next attempt. So no agent starts while one of their steps remains, or
        while that is unknown. If this lasts, the job ends, and all members with it.
        """
        if len(self._run.read_plan().get("nodes") or ()) <= 1:
            return True
        began_s = time.monotonic()
        said = ""
        while left := slurm_submission.end_steps(self._job, slurm_jobs.MEMBERS):
            waited_s = time.monotonic() - began_s
            if waited_s > MEMBERS_S:
                _say("the job ends, because no agent may start in it: %s" % left)
                return False
            if waited_s > LOOK_S and left != said:
                _say("no agent starts yet: %s" % left)
                said = left
            pause(LOOK_S if said else TURN_S, self._run, self._signals.has_any)
            if self._signals.has_any() or self._run.read_wish() != "run":
                return False
        return not self._signals.is_over

    def _signal_agent(self, number: int) -> bool:
        """Signal the agent, which is on this node. Return whether it was found."""
        agent = agent_of(self._run)
        return agent is not None and process.send(agent, number)

    def _is_over_for_us(self) -> bool:
        """Whether the job ends, after an agent that was asked to leave.

        If the job's time is up, it is started again. If Slurm itself has asked the agent to end, this waits
        for the end of the job: a script that ended early would count as failed, and the job would not be
        started again.
        """
        signals = self._signals
        if signals.is_told and not signals.is_over and self._run.read_wish() == "run":
            refused = slurm_submission.requeue(self._job)
            if refused:
                _say("the job is not started again: %s" % refused)
                submission = slurm_submission.read(self._run)
                slurm_submission.write(self._run, submission._replace(refused=refused))
                return True
        deadline = time.monotonic() + LEAVING_S
        while not signals.is_over and time.monotonic() < deadline and self._is_being_ended():
            signals.pause(LOOK_S)
        signals.is_told = False
        return signals.is_over

    def _is_being_ended(self) -> bool:
        """Whether Slurm is about to end this job; true if Slurm does not answer."""
        try:
            text = ask([*slurm_jobs.SHOW, self._job]).text
        except SlurmSilentError:
            return True
        shown = slurm_jobs.parse_shown(text)
        return shown is None or shown.state != "RUNNING" or slurm_jobs.makes_way(text)


STEP = (
    "srun",
    "--export=ALL",
    "--nodes=1",
    "--ntasks=1",
    "--overlap",
    "--cpu-bind=none",
    "--input=none",
    "--quiet",
)
"""Starts one process on the first node of the job, with all of the job's resources on that node."""
