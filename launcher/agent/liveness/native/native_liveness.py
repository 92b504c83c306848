"""Native runs: processes of this host under a keeper.

The keeper restarts a dead agent, and holds a lock while it lives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence

from ...record import secret
from ...record.files import read_text
from ...record.locks import is_locked
from ...record.rundir import Run
from ...record.safe_open import APPENDING, open_regular
from ...system import process, token_processes
from ...system.process_lineage import ProcessEntry
from ..liveness import COMING_BACK, GONE, LivenessProbe, RunLiveness, StartError

if TYPE_CHECKING:
    from ...record.run_records import AgentProcessRecord

START_S = 20.0
POLL_S = 0.005
KEEPER_GRACE_S = 3.0
STOPPED = "pid %d is stopped (SIGSTOP), its agent is dead, and its training may continue unseen"


class NativeLiveness(LivenessProbe):
    """If the keeper's lock is held, the agent will start again, unless the keeper is stopped."""

    is_started_by_client = False

    def judge(self, runs: Sequence[Run]) -> Dict[str, RunLiveness]:
        """Look at each keeper's lock. A stopped keeper starts no agent, and may stay stopped."""
        held = [run for run in runs if is_locked(run.keeper_lock)]
        stopped = _stopped() if held else []
        verdicts = {run.id: RunLiveness(GONE) for run in runs}
        for run in held:
            pid = next((keeper.pid for keeper in stopped if _is_keeper(keeper, run)), None)
            verdicts[run.id] = (
                RunLiveness(COMING_BACK, words="its keeper is running")
                if pid is None
                else RunLiveness(GONE, {"keeper": STOPPED % pid})
            )
        return verdicts

    def start(self, run: Run, after: int) -> None:
        """Start the run's keeper, and wait for its agent."""
        start_keeper(run, after)

    def wake(self, run: Run) -> None:
        """Signal the run's agent."""
        try:
            agent = agent_of(run)
        except OSError:  # the run's job keeps changing file modes; the agent will still read the wish
            return
        if agent is None:
            return
        process.send(agent, signal.SIGTERM)
        process.send(agent, signal.SIGCONT)  # a stopped process handles no other signal

    def end(self, run: Run) -> None:
        """Kill a run's keeper, agent and training."""
        token = read_text(run.token)
        if token:
            process.end(lambda: token_processes.with_token(token), "token", 0.0)

    def end_without_wish(self, run: Run, *, by_force: bool) -> None:
        """Make the keeper end the run, as on a host that shuts down."""
        if by_force:
            self.end(run)
        for keeper in _keepers(run):
            process.send(keeper, signal.SIGTERM)
            process.send(keeper, signal.SIGCONT)

    def left(self, run: Run) -> str:
        """Name the processes that carry the run's token, and those that an earlier attempt could not end."""
        token = read_text(run.token)
        pids = {found.pid for found in token_processes.with_token(token)} if token else set()
        for folder in run.newest():
            evidence = folder.read_state().get("evidence") or {}
            for recorded in evidence.get("remaining") or []:
                current = process.find(int(recorded["pid"]))
                if current is not None and current.start == recorded.get("start") and current.letter != "Z":
                    pids.add(current.pid)
        return "pid %s is still there" % ", ".join(map(str, sorted(pids))) if pids else ""


PROBE = NativeLiveness()


def agent_of(run: Run) -> Optional[process.Process]:
    """Return the run's agent, proven by its record and its lock; None if it is gone."""
    last = run.last()
    if last is None or not last.is_locked():
        return None
    record = last.read_attempt()
    agent: AgentProcessRecord = record.get("agent") or {}
    current = process.find(int(agent.get("pid", 0)))
    is_same_boot = record.get("boot_id") == process.boot_id()
    is_same = current is not None and is_same_boot and current.start == agent.get("start")
    return current if is_same else None


# the keeper


def start_keeper(run: Run, after: int) -> subprocess.Popen[bytes]:
    """Start the run's keeper in a new session; return it when its agent has a folder newer than `after`.

    Raises StartError, with the end of the keeper's log, if no agent appears; then nothing of it is left
    running.
    """
    keeper = _open_keeper(run)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if run.is_taken_over(after):
            return keeper
        if keeper.poll() is not None:
            break
        time.sleep(POLL_S)
    end_keeper(keeper.pid)
    tail = (read_text(run.keeper_log) or "")[-500:] or "it printed nothing"
    raise StartError("no-start", "the agent of run %s did not start: %s" % (run.id, tail))


def _open_keeper(run: Run) -> subprocess.Popen[bytes]:
    variables = secret.without(dict(os.environ), run.read_plan())
    # The token proves that the keeper is ours, in any session. Its ancestors prove nothing.
    variables.update({token_processes.OF_RUN: read_text(run.token) or "", token_processes.OF_KEEPER: "1"})
    with open(open_regular(run.keeper_log, APPENDING), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", sys.argv[0], "keep", run.path],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=variables,
            start_new_session=True,
        )


def end_keeper(pid: int) -> None:
    """End a keeper whose agent did not start, with its descendants, so that the run may be removed."""

    def targets() -> List[process.Process]:
        keeper = process.find(pid)
        alive = [keeper] if keeper is not None and keeper.letter != "Z" else []
        return alive + process.descendants(pid)

    process.end(targets, "child", KEEPER_GRACE_S)


def _keepers(run: Run) -> List[process.Process]:
    """Return the run's keeper, proven by the run's token and by its command line."""
    found = token_processes.with_token(read_text(run.token) or "?")
    return [bearer for bearer in found if _keeps(bearer.pid, run)]


def _stopped() -> List[ProcessEntry]:
    """Return the processes that a signal or a tracer has stopped."""
    return token_processes.read_entries(
        [found for found in process.table() if found.letter in ("T", "t")], ()
    )


def _is_keeper(entry: ProcessEntry, run: Run) -> bool:
    return entry.token is not None and entry.token == read_text(run.token) and _keeps(entry.pid, run)


def _keeps(pid: int, run: Run) -> bool:
    return process.words_of(pid)[-2:] == ["keep", run.path]
