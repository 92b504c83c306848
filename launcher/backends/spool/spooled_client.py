"""The host client for a spool: an agent on this machine over the spool, which is fed from the service.

Runs are prepared in the spool and read from it, as on any host, with two differences: a run's folder is fed
before the run is read, and the run's files are downloaded before they are read.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.backends.spool.feeding import CATCH_UP_S, Feeder
from launcher.backends.spool.segments import Segments
from launcher.backends.spool.spool_lacks import SPOOL_LACKS
from launcher.errors import LackingError, ServiceAuthError, ServiceUnreachableError
from launcher.transport.agent_input import Keyboard
from launcher.transport.channel import AgentReply, Calls, Incoming, Socket
from launcher.transport.client.host_client import (
    Heard,
    HostClient,
    HostUpkeep,
    Preparation,
    Printed,
    RunList,
    unheard,
)
from launcher.transport.client.run_reading import Reader
from launcher.transport.local import LocalConnection
from launcher.values.host import Host
from launcher.values.record import Summary, is_terminal
from launcher.values.reported.answers import CommandEnd, Freed, Inheritance, ResumeOptions, Sweep
from launcher.values.reported.checkpoint import SealedCheckpoint
from launcher.values.reported.output import Loss, Manifest, Outputs

MAX_LOOKS = 20
"""The largest number of runs whose status one list requests from the service: each costs a call."""
HOME_POLL_S = 1.0
BRIEFLY_S = 3.0
"""The longest time that a list of runs waits for the output of its live runs, in seconds."""


class SpooledClient(HostClient):
    """The client of an agent over a spool, with the segments that feed it."""

    def __init__(self, channel: Calls, segments: Segments, reader: Reader | None = None) -> None:
        """Use the spool's agent over this channel. The service is not contacted."""
        super().__init__(channel, reader)
        self.segments = segments
        self._feeders: dict[str, Feeder] = {}
        self.runs = _SpooledRuns(self._channel, self._reader, self)
        self.preparation = _SpooledPreparation(self._channel, self)
        self.upkeep = _SpooledUpkeep(self._channel)

    @property
    def about(self) -> str:
        """The account behind the spool and its quota, requested from the service."""
        return self.segments.service.about

    def feeder(self, run: str) -> Feeder | None:
        """Return the feeder of a run; `None` if it has no session.

        Raises the exception that ended the run's last feeder.
        """
        feeder = self._feeders.get(run)
        if feeder is not None:
            feeder.check()
            if feeder.is_working:
                return feeder
        record = self.segments.record(run)
        if record is None or not record.is_live:
            return None
        self._feeders[run] = Feeder(self.segments, run)
        return self._feeders[run]

    def download_files(self, run: str, heard: Heard) -> None:
        """Download the outputs of a run's ended sessions into the spool.

        `heard` gets the number of bytes so far. If the run has ended, wait for the end of its session, which
        may last a moment longer. The live session of a run that has not ended is skipped.
        """
        while (record := self.segments.record(run)) is not None:
            if record.status == "over":
                record = self.segments.advance(run, heard)
            elif record.is_live and self.segments.has_ended(run):
                self.feeder(run)  # downloads the record of a live session once it ends
            else:
                return
            if record is not None and (record.is_live or record.status == "over"):
                heard(0)
                time.sleep(HOME_POLL_S)

    def await_record(self, run: str) -> None:
        """Wait until the record of a run's ended session is here.

        Return at once if the session has not ended.
        """
        while (record := self.segments.record(run)) is not None and record.status == "ended":
            self.feeder(run)
            time.sleep(HOME_POLL_S)

    def catch_up(self, run: str, wait_s: float = CATCH_UP_S) -> None:
        """Wait until the spool has everything that a run has sent so far."""
        feeder = self.feeder(run)
        if feeder is not None:
            feeder.catch_up(wait_s)
            feeder.check()

    def catch_up_briefly(self, runs: Sequence[str]) -> bool:
        """Wait up to BRIEFLY_S for the output of running sessions that this client has not fed yet.

        Return whether any exist.
        """
        until = time.monotonic() + BRIEFLY_S
        records = [self.segments.record(run) for run in runs if run not in self._feeders]
        begun = [self.feeder(one.run) for one in records if one is not None and one.status == "running"]
        for feeder in filter(None, begun):
            feeder.catch_up(until - time.monotonic())
        return bool(begun)

    def by_hand(self, command: str) -> str:
        """Return the command unchanged: the spool is on this machine."""
        return command

    def open_socket(self, path: str) -> Socket:
        """Raise LackingError."""
        raise LackingError(self.host, "forward", SPOOL_LACKS["forward"])

    def open_port(self, port: int) -> Socket:
        """Raise LackingError."""
        raise LackingError(self.host, "forward", SPOOL_LACKS["forward"])

    def open_program(self, words: Sequence[str]) -> Socket:
        """Raise LackingError."""
        raise LackingError(self.host, "exec", SPOOL_LACKS["exec"])

    def close(self) -> None:
        """Close the connection and the feeders."""
        for feeder in self._feeders.values():
            feeder.close()
        super().close()


class _SpooledRuns(RunList):
    """The runs of a spool."""

    def __init__(self, channel: Calls, reader: Reader, client: SpooledClient) -> None:
        super().__init__(channel, reader)
        self._client = client

    def summaries(
        self, *runs: str, like: str | None = None, states: Sequence[str] = (), most: int | None = None
    ) -> list[Summary]:
        if states:  # updates their states from the service first
            self.summaries(*runs, like=like)
        listed = functools.partial(super().summaries, *runs, like=like, states=states, most=most)
        found = listed()
        if states:
            return found
        if self._has_adopted(found, runs, like):
            found = listed()
        live, segments = _live(found), self._client.segments
        changed = [run for run in live if segments.record(run) != segments.advance(run)]
        return listed() if self._client.catch_up_briefly(live) or changed else found

    def heard_before(self, *runs: str) -> list[Summary]:
        return super().summaries(*runs) if runs else []

    def _has_adopted(self, found: Sequence[Summary], runs: Sequence[str], like: str | None) -> bool:
        """Add runs that other clients began to the spool, from the service. Return whether any were found.
        If all known runs have ended, a service that does not answer is ignored.
        """
        if not runs and not like:
            try:
                return bool(self._client.segments.adopt())
            except (ServiceUnreachableError, ServiceAuthError):
                if _live(found) or not found:
                    raise
                return False
        missing = {*runs} - {summary.run for summary in found} if runs else {like} if not found else set()
        return bool([run for words in missing for run in self._client.segments.adopt(words or "")])

    def read(self, run: str, request: Mapping[str, Any], wait_s: float | None = None) -> AgentReply:
        if wait_s is None:
            self._client.catch_up(run)
        else:
            self._client.feeder(run)
        return super().read(run, request, wait_s)

    def execute(
        self, run: str, command: Sequence[str], take: Printed, is_enough: Callable[[], bool]
    ) -> CommandEnd:
        raise LackingError(self._client.host, "exec", SPOOL_LACKS["exec"])

    def interact(self, run: str, command: Sequence[str], take: Printed, keyboard: Keyboard) -> CommandEnd:
        raise LackingError(self._client.host, "shell", SPOOL_LACKS["shell"])

    def outputs(self, run: str, heard: Heard, *, every_file: bool = False) -> Outputs:
        self._client.download_files(run, heard)
        listed = super().outputs(run, heard, every_file=every_file)
        record = self._client.segments.record(run)
        if record is None:
            return listed
        missing = {path: f"{why}; it is in {record.ref}" for path, why in record.refused.items()}
        if record.are_files_lost:
            missing[f"the outputs of session {record.segment}"] = record.words
        return listed._replace(left_out={**listed.left_out, **missing})

    def manifest(self, run: str, paths: Sequence[str], heard: Heard) -> Manifest:
        self._client.download_files(run, heard)
        return super().manifest(run, paths, heard)

    def checkpoint(self, run: str, which: str) -> SealedCheckpoint:
        self._client.download_files(run, unheard)
        return super().checkpoint(run, which)

    def outlook(self, run: str) -> ResumeOptions:
        self._client.download_files(run, unheard)
        return super().outlook(run)

    def send(self, run: str, files: Sequence[tuple[str, int, int]], take: Callable[[Incoming], None]) -> None:
        self._client.download_files(run, unheard)
        super().send(run, files, take)

    def remove(self, run: str, held: Mapping[str, str], lose: Loss, heard: Heard) -> Freed:
        if lose != "all":
            self._client.download_files(run, heard)
        with self._client.segments.removal(run):
            return super().remove(run, held, lose, heard)


class _SpooledPreparation(Preparation):
    """The preparation of a run in the spool."""

    def __init__(self, channel: Calls, client: SpooledClient) -> None:
        super().__init__(channel)
        self._client = client

    def inherit(self, run: str, parent: str, requested_keys: Sequence[str]) -> Inheritance:
        self._client.download_files(parent, unheard)
        return super().inherit(run, parent, requested_keys)


class _SpooledUpkeep(HostUpkeep):
    """The upkeep of a spool: no process of a run is on this machine."""

    def sweep(self, runs: Iterable[str], *, dry_run: bool) -> Sweep:
        return Sweep(items=[])


def _live(found: Sequence[Summary]) -> list[str]:
    return [summary.run for summary in found if not is_terminal(summary.state)][:MAX_LOOKS]


def connect_spool(host: Host, root: Path, place: str) -> LocalConnection:
    """Return a connection to a spool. Make the spool if it is missing.

    Its agent uses `place` as its host id, so that the spool's runs and locks count as local.
    """
    _make_root(root, place)
    return LocalConnection(Host(name=host.name, root=str(root)), {"LAUNCH_HOST_ID": place})


def _make_root(root: Path, place: str) -> None:
    """Make a spool whose id is the same on every machine.

    Thus another client of the same account recognizes its runs as those of its own spool.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    mark = root / "root-id"
    if not mark.is_symlink():
        try:
            mark.symlink_to(hashlib.sha256(place.encode()).hexdigest()[:32])
        except FileExistsError:
            pass
