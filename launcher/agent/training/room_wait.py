"""Wait until the disk of a run's checkpoints has room for the next one."""

from __future__ import annotations

import shutil
import time
from typing import Optional

from ..attempt.attempt_writer import AttemptWriter
from ..attempt.stopping import StartInterruption
from ..record.rundir import Run
from ..store import checkpoints

BACK_OFF_S = (0.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The least wait in seconds, by failures in a row: a quota may make free space unavailable to us."""
LOOK_S = 3.0


def back_off_s(tries: int) -> float:
    """Return the least wait after this number of failures since the last checkpoint, in seconds."""
    return BACK_OFF_S[min(max(tries, 1), len(BACK_OFF_S)) - 1]


def wait_for_room(
    run: Run, needed: int, account: AttemptWriter, interruption: StartInterruption, tries: int
) -> None:
    """Wait for `needed` free bytes, longer after each of `tries` failures, and record both figures."""
    earliest_s = time.monotonic() + back_off_s(tries)
    said: Optional[checkpoints.Room] = None
    while not interruption.is_due():
        room = checkpoints.Room(shutil.disk_usage(run.checkpoints).free, needed)
        if room.free >= needed and time.monotonic() >= earliest_s:
            return
        if said is None or abs(room.free - said.free) > needed // 10:
            said = room
            account.say("resuming", "disk", evidence={"disk": room.words})
            account.record("evidence", {"disk": room.words})
        interruption.pause(LOOK_S)
