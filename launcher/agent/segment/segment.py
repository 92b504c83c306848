"""The agent's verb `segment`: one session of a run in a service, from its payload to its outputs.

    segment PAYLOAD WORKING INPUTS

PAYLOAD has `segment.json` and `run/`; WORKING is the folder that the service keeps at the end; INPUTS has the
session's inputs. The run has a keeper, as on other hosts. This process is the keeper's parent: it prints the
run's record (frames.py), makes the run save in time, and removes all files but the outputs. The exit status
is 0 once the session has done its part, even if the training has failed: that is on record.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import List, NamedTuple, Optional

from ..attempt.stopping import OF_SEGMENT
from ..cards.allowed_cards import MAX_CHARS, UnfitError, choose_cards
from ..liveness.liveness import StartError
from ..liveness.native import native_liveness
from ..record import strict_json
from ..record.files import write_durably
from ..record.rundir import Run
from ..serving import contact
from ..serving.requests import RequestError
from ..store import worker_folder
from ..system import login_umask, process
from . import fitness, inputs, pruning
from .frames import FramePrinter, line_of, write_line
from .segment_config import PayloadError, SegmentConfig, read_orders

SAVING_S = 120.0
"""The run is asked to save this long, plus its grace, before the session ends: for outputs, and for a slow host."""
MAX_SAVING_SHARE = 0.25
"""The largest share of the session for SAVING_S and the grace together."""
_OTHER_CARDS = (
    "launch again: the service may assign the requested card;  --allow-substitute plans for other cards too"
)
LAST_S = 15.0
MAX_LAST = 0.1
"""The largest share of a session that LAST_S may take."""
LOOK_S = 0.1
PRINTING_S = 30.0
BROKEN = 1


class Deadlines(NamedTuple):
    """When the run is asked to save, and when its remaining processes are killed, by the monotonic clock."""

    save_s: float
    kill_s: float


def deadlines_of(began_s: float, session_s: float, grace_s: float) -> Deadlines:
    """Return the deadlines of a session that began at `began_s` and must end after `session_s` seconds."""
    saving_s = min(grace_s + SAVING_S, MAX_SAVING_SHARE * session_s)
    last_s = min(LAST_S, MAX_LAST * session_s)
    return Deadlines(began_s + session_s - saving_s, began_s + session_s - last_s)


def main(arguments: List[str]) -> int:
    """Run a segment; return 0, or BROKEN if it could not begin."""
    payload, working, given = (os.path.abspath(path) for path in arguments)
    began_s = time.monotonic() - _age_s()
    terminations: List[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: terminations.append(number))
    login_umask.make_private()
    os.chdir("/")
    try:
        orders = read_orders(payload)
        os.environ.update({"LAUNCH_HOST_ID": orders.place_id, OF_SEGMENT: str(orders.segment)})
        run = inputs.lay_out(payload, working, orders.run)
        worker_folder.unpack(sys.argv[0])
    except (PayloadError, OSError) as error:
        write_line(1, line_of("this session cannot begin: %s" % error))
        return BROKEN
    process.become_subreaper()
    deadlines = deadlines_of(began_s, orders.session_s, _grace_s(run))
    segment = _Segment(orders, run, given, deadlines, terminations)
    try:
        return segment.go()
    finally:
        segment.clear_away()


def _age_s() -> float:
    """Return the age of this process in seconds: it began as a script of the service and became the agent."""
    me = process.find(os.getpid())
    return (process.age_s(me.start) if me is not None else None) or 0.0


def _grace_s(run: Run) -> float:
    return float(run.read_plan().get("stop_grace_s", 30.0))


class _Segment:
    """A segment whose run is laid out."""

    def __init__(
        self, orders: SegmentConfig, run: Run, given: str, deadlines: Deadlines, terminations: List[int]
    ) -> None:
        self._orders = orders
        self._run = run
        self._given = given
        self._deadlines = deadlines
        self._terminations = terminations
        self._after = run.numbers()[-1]
        self._printer = FramePrinter(run, self._after)

    def go(self) -> int:
        """Prepare the run, start its keeper, and wait for its end or the deadline."""
        say = self._printer.say
        say("segment %d of run %s" % (self._orders.segment, self._run.id))
        try:
            self._check_machine()
            self._fill()
            self._keep(native_liveness.start_keeper(self._run, self._after))
        except UnfitError as error:
            say("%s: %s" % (error.reason, error))
            contact.settle(self._run, "failed", error.reason, evidence=error.evidence).release()
        except (PayloadError, StartError, OSError) as error:
            say("this session cannot begin: %s" % error)
            self._record_broken(str(error))
            return BROKEN
        return 0

    def clear_away(self) -> None:
        """End the rest of the run, print the last frames, and remove all files but the outputs."""
        process.end(process.own_descendants, "descendant", 0.0)
        if not self._printer.finish(PRINTING_S):
            write_line(2, line_of("the output of this session is not read"))
        pruning.prune(self._run, self._after)

    def _check_machine(self) -> None:
        """Record which cards the session got, and install missing packages. Raises UnfitError."""
        run, orders, say = self._run, self._orders, self._printer.say
        came = choose_cards(run.root, orders.cards, "the session", _OTHER_CARDS)
        prepared = run.prepared()
        runtime = {**(prepared.get("runtime") or {}), "interpreter": sys.executable}
        runtime["gpus"] = [] if came is None else came.gpus
        here = {"runtime": runtime, "boot_id": process.boot_id()}  # the code has just been placed
        write_durably(run.prepared_record, strict_json.encode({**prepared, **here}) + "\n")
        torch = None
        if came is not None:
            say("%s came" % came.allowed.title)
            if came.allowed.plan:
                write_durably(run.plan, strict_json.encode({**run.read_plan(), **came.allowed.plan}) + "\n")
            torch = fitness.check_torch(came, orders, self._deadlines.save_s, say)
        fitness.check_requirements(orders, torch, self._deadlines.save_s, say)

    def _fill(self) -> None:
        """Fill the run's work/ from the inputs. Raises PayloadError, OSError."""
        if self._orders.tree is not None:
            inputs.unpack(self._orders.tree, self._given, self._run)
        if not os.path.isdir(self._run.code):
            raise PayloadError("neither the payload nor the inputs have the run's code")
        if self._orders.earlier:
            earlier = inputs.find_earlier(self._given, self._run.id)
            if earlier is None:
                raise PayloadError("the inputs have no outputs of an earlier segment")
            count = inputs.lay_over(earlier, self._run)
            self._printer.say("took %d files over from %s" % (count, earlier.path))

    def _keep(self, keeper: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a run under its keeper; ask it to save in time; return at the kill deadline."""
        is_asked = False
        while keeper.poll() is None:
            now_s = time.monotonic()
            if not is_asked and (self._terminations or now_s >= self._deadlines.save_s):
                is_asked = True
                self._printer.say("the session ends soon: the run is asked to save")
                _ask_to_save(keeper.pid)
            if now_s >= self._deadlines.kill_s:
                self._printer.say("the session ends: what still runs is killed")
                return
            time.sleep(LOOK_S)

    def _record_broken(self, words: str) -> None:
        """Record why the run could not begin here.

        A failed first segment is final; a later one may be tried again.
        """
        evidence = {"class": "never-started", "line": words[:MAX_CHARS]}
        state, reason = (
            ("failed", "never-started") if self._orders.segment == 1 else ("interrupted", "agent-lost")
        )
        with contextlib.suppress(RequestError, OSError):
            contact.settle(self._run, state, reason, evidence=evidence).release()


def _ask_to_save(pid: int) -> Optional[bool]:
    keeper = process.find(pid)
    return None if keeper is None else process.send(keeper, signal.SIGTERM)
