"""The part of a run's record that is in the local copy. `record_sync` fetches it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pydantic import ValidationError

from launcher.base.json_file import MOST_BYTES
from launcher.copy.printed_lines import parse_event
from launcher.copy.record_sync import PLAN
from launcher.copy.run_files import RunFiles, lines_of
from launcher.values.record import Event, FolderStart, Parent, PlanSummary, RunState, State

MOST_LOOKED_BACK = 8
LOOKED_BACK_BYTES = 65_536
"""The maximum number of folders, and of bytes of events in each, that are searched for the last step."""
_GROWING = (".jsonl", ".txt")
MOST_GROWN = 2 << 30
"""The maximum number of bytes that are read of an event file or a log."""


class Reached(NamedTuple):
    """The last known step of a run, and its loss at that step; None if unknown."""

    step: int | None = None
    loss: float | str | None = None


class RunRecord:
    """The record of one run in its local copy: plan, states, events and logs.

    It is another machine's data.
    """

    def __init__(
        self, files: RunFiles, disk_errors: Callable[[Path], contextlib.AbstractContextManager[None]]
    ) -> None:
        """Create a record that reads these files.

        `disk_errors` converts disk errors at a path into its own exception.
        """
        self._files = files
        self._disk_errors = disk_errors
        self._plan: PlanSummary | None = None

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file of the record; `None` if it is not here. Raises OSError."""
        try:
            return self._files.read(name, MOST_GROWN if name.endswith(_GROWING) else MOST_BYTES)
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
        """Return the last fetched state; None before the first."""
        numbers = self._files.numbered()
        return _state(self._files.read_json(f"{numbers[-1]}/state.json")) if numbers else None

    def attempts_s(self, now: float | None) -> float:
        """Return the total time of the attempts, by the clocks of their hosts; the last one may run until `now`.

        An attempt whose agent died ends with its last report.
        """
        total = 0.0
        folders = self._files.numbered()
        for folder in folders:
            attempt = self._files.read_json(f"{folder}/attempt.json")
            state = self._files.read_json(f"{folder}/state.json")
            begin, end = FolderStart.lenient(attempt).time, state.get("time")
            if attempt.get("kind") != "attempt" or begin is None or not isinstance(end, int | float):
                continue
            if state.get("state") in (State.PREPARING, State.RUNNING, State.STOPPING):
                last_time = now if folder == folders[-1] else _last_time(self._end_of_events(folder))
                end = max(end, last_time or end)
            total += max(0.0, end - begin)
        return total

    def last_step(self) -> Reached:
        """Return the last recorded step with its loss, from the newest folders that have one; without a step, the last loss.

        A run's last record may be that of a contact, or of an attempt that was stopped before its first step.
        """
        loss: float | str | None = None
        for folder in self._files.numbered()[: -MOST_LOOKED_BACK - 1 : -1]:
            state = _state(self._files.read_json(f"{folder}/state.json"))
            if state is not None and state.step is not None and state.loss is not None:
                return Reached(state.step, state.loss)
            reported = _last_reported(self._end_of_events(folder))
            if state is not None and state.step is not None:
                return Reached(state.step, reported.loss)
            if reported.step is not None:
                return reported
            if loss is None:
                loss = reported.loss if state is None or state.loss is None else state.loss
        return Reached(None, loss)

    def began(self) -> float | None:
        """Return the time when the run was made, by the host's clock."""
        return FolderStart.lenient(self._files.read_json("0001/attempt.json")).time

    def job_id(self) -> str | None:
        """Return Slurm's id of the run's last job, from the newest folders; None without Slurm or a recorded job."""
        for folder in self._files.numbered()[: -MOST_LOOKED_BACK - 1 : -1]:
            job_id = FolderStart.lenient(self._files.read_json(f"{folder}/attempt.json")).job_id
            if job_id is not None:
                return job_id
        return None

    def parent(self) -> Parent | None:
        """Return the parent run; `None` if the run has no parent, or if it has not been fetched yet."""
        return FolderStart.lenient(self._files.read_json("0001/attempt.json")).parent

    def events(self) -> Iterator[Event]:
        """Yield all fetched events, oldest folder first."""
        for name in self.event_files():
            with self.opened(name) as file:
                for line in lines_of(file):
                    event = parse_event(line)
                    if event is not None:
                        yield event

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open an event file or a log, to read it line by line. Raises RunError if it cannot be read."""
        with self._disk_errors(self._files.folder / name), self._files.open(name, most=MOST_GROWN) as file:
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
        """Return a file of every numbered folder, oldest first; the leader's before those of the other nodes."""
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
    """Return the last step with a loss in the end of an event file; without any step, the last loss."""
    without_step = Reached()
    for line in reversed(events.splitlines()):
        event = parse_event(line)
        if event is None or event.kind != "metric" or event.rank != 0:
            continue
        loss = event.values.get("loss")
        if not isinstance(loss, int | float | str):
            continue
        if event.step is not None:
            return Reached(event.step, loss)
        without_step = without_step if without_step.loss is not None else Reached(None, loss)
    return without_step


def _state(values: object) -> RunState | None:
    """Return a state without its malformed fields; `None` if the rest is not a state."""
    try:
        return RunState.lenient(values)
    except ValidationError:
        return None


def _last_time(events: bytes) -> float | None:
    """Return the time of the last event in the end of an event file."""
    found = map(parse_event, reversed(events.splitlines()))
    return next((event.time for event in found if event is not None), None)
