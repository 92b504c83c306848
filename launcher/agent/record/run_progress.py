"""The progress of a run, from its record: its last step with its loss, and its running time.

An agent that died has recorded no final state in its folder. The last step is then in the events, and the
running time in the heartbeat.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Iterator, NamedTuple, Optional

from . import strict_json
from .record_shape import is_event, is_figure
from .rundir import HEARTBEAT_S, LIVE, RecordFolder, Run
from .safe_open import read_tail

if TYPE_CHECKING:
    from .run_records import AttemptRecord, EventRecord, HeartbeatRecord, Loss, StateRecord

MAX_LOOKBACK = 8
"""The most folders to search for a step, so that a long history does not slow down a listing."""
MAX_BYTES = 65_536
"""The most bytes of a folder's events to read."""


class Reached(NamedTuple):
    """A step and the loss at that step; None if unknown."""

    step: Optional[int] = None
    loss: Optional[Loss] = None


class RunProgress(NamedTuple):
    """The last known step of a run with its loss, and its running time over all its attempts in seconds.

    Time in a queue, between attempts, or in a wait for room or a card does not count as running time.
    """

    step: Optional[int]
    loss: Optional[Loss]
    took_s: float


def progress_of(run: Run, *, is_live: bool) -> RunProgress:
    """Return the progress of a run. If `is_live`, an agent still writes the newest folder.

    If an attempt prints no steps, only its last loss is known. A waiting or retried run shows its last step
    until its next attempt has reported one of them.
    """
    reached = Reached()
    later_s, total_s = 0.0, None
    for number, folder in enumerate(run.newest()):
        state, beat, is_newest = folder.read_state(), folder.read_heartbeat(), is_live and number == 0
        if reached == Reached() and number < MAX_LOOKBACK:
            reached = _step_in(folder, state, beat, is_live=is_newest)
        if total_s is None:
            total_s = _total_s(folder, state, beat, is_live=is_newest)
            later_s += _older_s(folder, state, beat, is_live=is_newest) if total_s is None else total_s
        if total_s is not None and (reached != Reached() or number >= MAX_LOOKBACK):
            break
    return RunProgress(*reached, later_s)


def step_in(folder: RecordFolder) -> Optional[int]:
    """Return the last known step in one folder that no agent writes."""
    return _step_in(folder, folder.read_state(), folder.read_heartbeat(), is_live=False).step


def _step_in(folder: RecordFolder, state: StateRecord, beat: HeartbeatRecord, *, is_live: bool) -> Reached:
    """Return the last known step of one folder with its loss; without any step, the last loss."""
    ended = Reached(state.get("step"), state.get("loss"))
    if state.get("state") not in LIVE:
        return ended
    beaten = Reached(beat.get("step"), beat.get("loss"))
    if is_live:
        known = sorted((beaten, ended), key=lambda one: one.step or 0, reverse=True)
    else:
        known = [_reported(folder), beaten, ended]
    with_step = (one for one in known if one.step is not None)
    return next(with_step, next((one for one in known if one.loss is not None), Reached()))


def _total_s(
    folder: RecordFolder, state: StateRecord, beat: HeartbeatRecord, *, is_live: bool
) -> Optional[float]:
    """Return the running time of the run until the end of a folder; None if the folder does not record it."""
    known_s, since = state.get("took_s"), state.get("time")
    if known_s is None or since is None or state["state"] not in LIVE:
        return known_s
    if is_live:
        return known_s + max(0.0, time.time() - since)
    known_s += max(0.0, (_last_time(folder) or since) - since)
    beaten_s = beat.get("took_s")
    # The events' times are wrong after a change of the clock, so the last event counts at most one
    # heartbeat's interval after the last heartbeat.
    return known_s if beaten_s is None else min(max(known_s, beaten_s), beaten_s + HEARTBEAT_S)


def _older_s(folder: RecordFolder, state: StateRecord, beat: HeartbeatRecord, *, is_live: bool) -> float:
    """Return the running time of an attempt that an older version recorded, by the times of its records."""
    end = state.get("time")
    attempt: AttemptRecord = {} if end is None else folder.read_attempt()
    begin = attempt.get("time")
    if attempt.get("kind") != "attempt" or begin is None or end is None:
        return 0.0
    if state["state"] in LIVE:
        end = time.time() if is_live else max(end, begin + (beat.get("ran_s") or 0.0))
    return max(0.0, end - begin)


def _reported(folder: RecordFolder) -> Reached:
    """Return the last step and the last loss in the end of a folder's events."""
    step: Optional[int] = None
    loss: Optional[Loss] = None
    for event in _last_events(folder):
        if event["kind"] != "metric" or event.get("rank"):
            continue
        step = event.get("step") if step is None else step
        said = (event.get("values") or {}).get("loss")
        loss = said if loss is None and is_figure(said) else loss
        if step is not None and loss is not None:
            break
    return Reached(step, loss)


def _last_time(folder: RecordFolder) -> Optional[float]:
    """Return the time of the last event in a folder; None if it has none."""
    return next((event["time"] for event in _last_events(folder)), None)


def _last_events(folder: RecordFolder) -> Iterator[EventRecord]:
    """Yield the events in the end of a folder's events, the last one first. The job may have written anything."""
    for line in reversed(read_tail(folder.events, MAX_BYTES).splitlines()):
        try:
            event = strict_json.decode(line)
        except ValueError:  # the first or the last line may be torn
            continue
        if is_event(event):
            yield event
