"""The agent beside the training: makes the attempts of a run, one after the other.

The exit status is 0 once a terminal state is on disk, and 75 to request a restart.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from ..liveness import predecessor, run_state
from ..record import strict_json
from ..record.rundir import TERMINAL, RecordFolder, Run
from ..system import process
from .keeper import SEEN
from .supervise import Supervisor

if TYPE_CHECKING:
    from ..record.run_records import PreviousRecord

LOOK_S = 0.5


def main(arguments: list[str]) -> int:
    """Make attempts of a run until none follows.

    The variable SEEN has the parent's report on the last agent.
    """
    run = Run(os.path.abspath(arguments[0]))
    text = os.environ.pop(SEEN, None)
    seen = strict_json.decode(text) if text else None
    last = run.last()
    if last is not None and (last.read_state().get("state") in TERMINAL or not _is_over(run, last)):
        return 0
    process.become_subreaper()
    try:
        return _go_on(run, last, seen)
    except FileExistsError as error:
        _say("another process made %s, and continues the run" % error.filename)
        return 0


def _is_over(run: Run, last: RecordFolder) -> bool:
    """Whether the last agent of a run is dead or has left.

    If no evidence on this machine decides this, wait until the agent has been silent long enough.
    """
    if predecessor.is_by_a_client(last) or run_state.probe_of(run).writes_afar:
        return True  # if `writes_afar`, the runtime has decided, and the fence ends the last agent
    if predecessor.lock_decides(run, last):
        is_locked = last.is_locked()
        if is_locked:
            _say("another agent writes %s: nothing to do" % last.path)
        return not is_locked
    silence = predecessor.SilenceWatch(run, last)
    words = "the lock of %s does not show here whether its agent is alive; waiting for %.0f s of silence"
    _say(words % (last.path, silence.lasts_s))
    while (is_dead := silence.look()) is None:
        time.sleep(LOOK_S)
    _say("its agent has been silent: continuing" if is_dead else "the run is alive elsewhere: nothing to do")
    return is_dead


def _say(words: str) -> None:
    sys.stderr.write("launch: %s\n" % words)
    sys.stderr.flush()


def _go_on(run: Run, last: RecordFolder | None, seen: PreviousRecord | None) -> int:
    """Make the attempts of a run whose last folder has no writer.

    Raises FileExistsError if another process was faster.
    """
    supervisor = _kind_of(run)
    if not (run.prepared().get("runtime") or {}).get("gpus"):
        return _make_attempts(supervisor(run, last, seen))[0]
    from ..cards import lease  # with its imports it takes as long to load as the rest of the agent

    cards = lease.claim(run)
    if not cards.gpus and run.read_wish() == "run":
        lease.write_waiting(run, last, cards.busy)
        return 0
    status, last_attempt = _make_attempts(supervisor(run, last, seen, cards))
    if last_attempt.account.state in TERMINAL:
        with contextlib.suppress(OSError):  # a sweep removes them, and a lease of an ended run holds no card
            lease.give_back(run)
    if last_attempt.cards is not None:
        last_attempt.cards.release()
    return status


def _kind_of(run: Run) -> type[Supervisor]:
    """Return the class that makes the attempts of a run: those of a verification are trials."""
    if not run.read_plan().get("verification"):
        return Supervisor
    from .trial_attempt import TrialSupervisor  # no other run needs it

    return TrialSupervisor


def _make_attempts(attempt: Supervisor) -> tuple[int, Supervisor]:
    """Make attempts until none follows; return the agent's exit status and the last attempt."""
    while (status := attempt.supervise()) is None:
        try:
            attempt = attempt.make_next()
        except FileExistsError:
            status = attempt.leave()
            break
    process.ignore_terminations()  # the end is on record: the exit status must agree with it
    return status, attempt
