"""The part of a run's record that is in the local copy. `record_sync` fetches it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pydantic import ValidationError

from launcher.base.json_file import MAX_BYTES
from launcher.copy.printed_lines import parse_event
from launcher.copy.record_sync import PLAN
from launcher.copy.run_files import RunFiles, lines_of
from launcher.values.record import Event, FolderStart, Parent, PlanSummary, RunState, State

MAX_LOOKBACK = 8
LOOKED_BACK_BYTES = 65_536
"""The last step is searched for in at most this many folders, and in this many bytes of each folder's events."""
LIVE = (State.PREPARING, State.RUNNING, State.STOPPING)
"""The states of a folder whose writer has recorded no end."""
_GROWING = (".jsonl", ".txt")
MAX_GROWTH = 2 << 30
"""The maximum number of bytes that are read of an event file or a log."""


class Reached(NamedTuple):
    """The last known step of a run, and its loss at that step; None if unknown."""

    step: int | None = None
    loss: float | str | None = None


class RunRecord:
    """The record of one run in its local copy: plan, states, events and logs.

    It is untrusted data from another machine.
    """

    def __init__(
        self, files: RunFiles, disk_errors: Callable[[Path], contextlib.AbstractContextManager[None]]
    ) -> None:
        """Create a record that reads these files.

        `disk_errors` returns a context manager that converts the disk errors of a path.
        """
        self._files = files
        self._disk_errors = disk_errors
        self._plan: PlanSummary | None = None

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file of the record; `None` if it is not here. Raises OSError."""
        try:
            return self._files.read(name, MAX_GROWTH if name.endswith(_GROWING) else MAX_BYTES)
        except FileNotFoundError:
            return None

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each local event file and log."""
        names = [*self.event_files(), *self.logs()]
        found = {name: self._files.status(name) for name in names}
        return {name: status.st_size for name, status in found.items() if status is not None}

    def plan(self) -> PlanSummary:
        """Return the displayed part of the plan; empty if the plan has not been fetched.

        A fetched plan is cached.
        """
        if self._plan is None and (record := self._files.read_json(PLAN)):
            self._plan = PlanSummary.lenient(record)
        return self._plan or PlanSummary()

    def last_state(self) -> RunState | None:
        """Return the last fetched state; None if no state was fetched."""
        numbers = self._files.numbered()
        return _state(self._files.read_json(f"{numbers[-1]}/state.json")) if numbers else None

    def took_s(self, now: float | None) -> float | None:
        """Return the running time of the run over all its attempts, in seconds; None without a record.

        The last attempt may run until `now`. Times come from the hosts' clocks. An attempt whose agent died
        ends with its last event.
        """
        later_s = 0.0
        folders = self._files.numbered()
        for folder in reversed(folders):
            state = _state(self._files.read_json(f"{folder}/state.json"))
            if state is None or state.time is None:
                continue
            more_s = 0.0
            if state.state in LIVE:
                last = now if folder == folders[-1] else None
                last = _last_time(self._end_of_events(folder)) if last is None else last
                more_s = 0.0 if last is None else max(0.0, last - state.time)
            if state.took_s is not None:
                return state.took_s + more_s + later_s
            later_s += more_s + self._older_s(folder, state.time)
        return later_s if folders else None

    def _older_s(self, folder: str, end: float) -> float:
        """Return the running time of an attempt that an older version recorded, until its state was written."""
        record = self._files.read_json(f"{folder}/attempt.json")
        begin = FolderStart.lenient(record).time
        return max(0.0, end - begin) if record.get("kind") == "attempt" and begin is not None else 0.0

    def last_step(self) -> Reached:
        """Return the last recorded step with its loss, from the newest folder that has one of them.

        A run's newest folder may have no step: its attempt was stopped before the first step, or a client
        wrote it without an attempt (a `contact`). In a folder whose attempt has not ended, the last step is
        in the events.
        """
        newest = self._files.numbered()[: -MAX_LOOKBACK - 1 : -1]
        found = (reached for folder in newest if (reached := self._step_in(folder)) != Reached())
        return next(found, Reached())

    def _step_in(self, folder: str) -> Reached:
        """Return the last step and the last loss of one folder."""
        state = _state(self._files.read_json(f"{folder}/state.json"))
        known = Reached() if state is None else Reached(state.step, state.loss)
        has_ended = state is not None and state.state not in LIVE
        if has_ended and None not in known:
            return known
        reported = _last_reported(self._end_of_events(folder))
        first, second = (known, reported) if has_ended else (reported, known)
        return Reached(
            second.step if first.step is None else first.step,
            second.loss if first.loss is None else first.loss,
        )

    def began(self) -> float | None:
        """Return the time when the run was made, by the host's clock."""
        return FolderStart.lenient(self._files.read_json("0001/attempt.json")).time

    def job_id(self) -> str | None:
        """Return Slurm's id of the run's last job, from the newest folders; None without Slurm or a recorded job."""
        for folder in self._files.numbered()[: -MAX_LOOKBACK - 1 : -1]:
            job_id = FolderStart.lenient(self._files.read_json(f"{folder}/attempt.json")).job_id
            if job_id is not None:
                return job_id
        return None

    def parent(self) -> Parent | None:
        """Return the parent run; `None` if the run has no parent, or if it has not been fetched yet."""
        return FolderStart.lenient(self._files.read_json("0001/attempt.json")).parent

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run reported a checkpoint to resume from, as far as its events are here."""
        return any(event.kind == "checkpoint" for event in self.events())

    def events(self) -> Iterator[Event]:
        """Yield all fetched events, oldest folder first."""
        for name in self.event_files():
            with self.opened(name) as file:
                for line in lines_of(file):
                    event = parse_event(line)
                    if event is not None:
                        yield event

    def marked_events(self, folder: str, *marks: bytes) -> Iterator[Event]:
        """Yield the events of an attempt whose lines contain one of these marks. Other lines, often millions, are not parsed."""
        try:
            lines = self._files.read(f"{folder}/events.jsonl", MAX_GROWTH).splitlines()
        except OSError:
            return
        for line in lines:
            if any(mark in line for mark in marks) and (event := parse_event(line)) is not None:
                yield event

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open an event file or a log, to read it line by line. Raises RunError if it cannot be read."""
        with self._disk_errors(self._files.folder / name), self._files.open(name, most=MAX_GROWTH) as file:
            yield file

    def events_of_leader(self) -> list[str]:
        """Return the fetched event files of the run's first node only, oldest folder first."""
        return [name for name in self.event_files() if name.count("/") == 1]

    def event_files(self) -> list[str]:
        """Return the fetched event files, oldest folder first."""
        return self._of_all_nodes("events.jsonl")

    def logs(self) -> list[str]:
        """Return the fetched logs, oldest attempt first."""
        return self._of_all_nodes("log.txt")

    def _of_all_nodes(self, name: str) -> list[str]:
        """Return the paths of the files of this name, oldest folder first; the leader's before those of the other nodes."""
        paths = [path for path in self.of_attempts() if path.rpartition("/")[2] == name]
        return sorted(paths, key=lambda path: path.split("/")[:-1])

    def of_attempts(self) -> list[str]:
        """Return the paths of all files in the numbered folders and in those of their nodes, sorted."""
        found = []
        for number in self._files.numbered():
            for name in self._files.names(number):
                inner = self._files.names(f"{number}/{name}") if "." not in name else []
                found += [f"{number}/{name}", *(f"{number}/{name}/{one}" for one in inner)]
        return found

    def _end_of_events(self, folder: str) -> bytes:
        """Return the last piece of a numbered folder's events; empty if it has none."""
        try:
            with self._files.open(f"{folder}/events.jsonl") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOOKED_BACK_BYTES))
                return file.read(LOOKED_BACK_BYTES)
        except OSError:
            return b""


def _last_reported(events: bytes) -> Reached:
    """Return the last step and the last loss at the end of an event file."""
    step: int | None = None
    loss: float | str | None = None
    for line in reversed(events.splitlines()):
        event = parse_event(line)
        if event is None or event.kind != "metric" or event.rank != 0:
            continue
        step = event.step if step is None else step
        said = event.values.get("loss")
        loss = said if loss is None and isinstance(said, int | float | str) else loss
        if step is not None and loss is not None:
            break
    return Reached(step, loss)


def _state(values: object) -> RunState | None:
    """Return a state without its malformed fields; `None` if the rest is not a state."""
    try:
        return RunState.lenient(values)
    except ValidationError:
        return None


def _last_time(events: bytes) -> float | None:
    """Return the time of the last event at the end of an event file."""
    found = map(parse_event, reversed(events.splitlines()))
    return next((event.time for event in found if event is not None), None)
