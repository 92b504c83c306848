"""Kaggle as a place for runs: each segment of a run is a kernel, and what it prints and leaves grows into a spool.

All that is Kaggle's own of it is here and in the `kaggle_*` modules: names, machines, what a push carries, quota. Nothing
has been tried against the real service; the stand-in of our tests answers as its own client expects.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from platformdirs.unix import Unix

from launcher.errors import ServiceAuthError, ServiceError, UsageError
from launcher.hosts import kaggle_log
from launcher.hosts.agent_file import agent_file
from launcher.hosts.kaggle_credentials import logins
from launcher.hosts.kaggle_service import HOST, KaggleService, log_in
from launcher.hosts.segments import Look, Packed, Segments
from launcher.hosts.spool import OutputFile
from launcher.hosts.spooled_desk import SpooledDesk
from launcher.remote.record.rundir import Run
from launcher.values.host import Host
from launcher.values.kaggle_kernel import SLUG_CHARACTERS, KernelRef, LogPiece, NewKernel
from launcher.values.kaggle_kernel import KaggleReason as Reason
from launcher.values.kaggle_settings import API, KaggleSettings
from launcher.values.segment_record import SegmentRecord, SegmentStatus
from launcher.values.text import printable

STATUSES: dict[str, SegmentStatus] = {
    "QUEUED": "queued",
    "RUNNING": "running",
    "CANCEL_REQUESTED": "running",
    "COMPLETE": "over",
    "ERROR": "over",
    "CANCEL_ACKNOWLEDGED": "over",
}
"""Ours for each status of a session. Any other leaves it running: a later version's word is no end."""
WORDS = {"COMPLETE": "its session is complete", "ERROR": "its session ended in an error"}
OUTPUT_ROOT = "launch/runs"
"""Where a kernel keeps runs, below its working folder, which is its output."""
MISSING = (Reason.NOT_FOUND, Reason.FORBIDDEN)


def open_account(host: Host, settings: KaggleSettings) -> SpooledDesk:
    """Return the desk of an account: its spool, and the service behind it, which is not asked yet.

    Raises ServiceAuthError without credentials, HostError.
    """
    account = Account(settings, settings.account or _account_here(settings))
    return account.desk(host)


class Account:
    """An account of Kaggle's, as the service behind its spool."""

    name = HOST

    def __init__(self, settings: KaggleSettings, name: str) -> None:
        """Nothing is asked of the service yet."""
        self._settings = settings
        self.user = name
        suffix = "" if settings.api == API else "-" + hashlib.sha256(settings.api.encode()).hexdigest()[:8]
        self.place = f"{HOST}-{name}{suffix}"

    def desk(self, host: Host) -> SpooledDesk:
        """Return the desk of the account's spool. Raises HostError."""
        segments = Segments(self, self.spool, keeps_kernels=self._settings.keep_kernels)
        return SpooledDesk(host, self.spool, self.place, segments)

    @property
    def spool(self) -> Path:
        """The folder of the spool, in this user's data."""
        return Unix("launch").user_data_path / "spool" / self.place

    @functools.cached_property
    def service(self) -> KaggleService:
        """The service, logged in. Raises ServiceAuthError, BadFileError or ServiceUnreachableError."""
        service = log_in(os.environ, Path.home(), self._settings.api)
        if service.user != self.user:
            words = f"{HOST}: the credentials here are {service.user}'s, but the host is of account {self.user}"
            raise ServiceAuthError(HOST, Reason.UNAUTHORIZED, f"{words}\n  set account = \"{service.user}\", or log in as {self.user}")
        return service

    # segments

    def reference(self, run: str, segment: int) -> str:
        """Return `account/launch-RUN-SEGMENT`; the name in a run's id is cut where that would be too long for Kaggle."""
        number = str(segment)
        room = SLUG_CHARACTERS.stop - 1 - len(f"launch--{number}")
        if len(run) > room:
            head, _, tail = run.rpartition("-")
            run = f"{head[: room - len(tail) - 1]}-{tail}"
        slug = re.sub(r"[^a-z0-9]+", "-", f"launch-{run}-{number}")
        return str(KernelRef(self.user, slug))

    def push(self, record: SegmentRecord, packed: Packed) -> None:
        """Push a segment's script, once."""
        kernel = NewKernel(
            ref=_ref(record.ref),
            source=packed.script,
            machine=packed.machine,
            timeout_s=max(1, round(packed.session_s)),
            has_internet=self._settings.internet,
            datasets=tuple(f"{self.user}/{slug}" for slug in packed.datasets),
            kernels=(record.source,) if record.source else (),
        )
        pushed = self.service.push(kernel)
        if pushed.landed != kernel.ref:
            words = f"{HOST}: {kernel.ref} was pushed, and landed at {pushed.landed}"
            self._undo(pushed.landed or kernel.ref)
            raise ServiceError(HOST, Reason.CONFLICT, words)
        if pushed.dropped:
            self._undo(kernel.ref)
            words = f"{HOST}: {kernel.ref} would run without {', '.join(pushed.dropped)}, and was deleted"
            raise ServiceError(HOST, Reason.INVALID_SOURCES, f"{words}\n  were they deleted on kaggle.com?")

    def _undo(self, ref: KernelRef) -> None:
        self.delete(str(ref))

    def is_full(self, error: ServiceError) -> bool:
        """Whether a push was refused only because too many sessions run."""
        return error.reason == Reason.SESSION_LIMIT

    def exists(self, ref: str) -> bool:
        """Whether the account has a kernel."""
        return self.service.find(_ref(ref)) is not None

    def look(self, ref: str) -> Look:
        """Return what the service says of a kernel's session."""
        try:
            said = self.service.status(_ref(ref))
        except ServiceError as error:
            if error.reason in MISSING and not self.exists(ref):
                return Look("deleted", "its kernel is gone from kaggle.com")
            raise
        words = WORDS.get(said.status, "")
        if said.failure_message:
            words = f"{words or said.status.lower()}: {printable(said.failure_message[:200])}"
        return Look(STATUSES.get(said.status, "running"), words)

    def follow(self, ref: str, position: int) -> Iterator[LogPiece | None]:
        """Yield the pieces of a session's log."""
        return kaggle_log.follow(self.service, _ref(ref), position)

    def outputs(self, ref: str, run: str) -> Iterator[OutputFile]:
        """Yield the files of a run's folder that a session has left. A link that has expired by its turn is asked for again."""
        prefix = f"{OUTPUT_ROOT}/{run}/"
        done: set[str] = set()
        while True:
            try:
                for file in self.service.outputs(_ref(ref)):
                    path = file.file_name.removeprefix(prefix)
                    if path != file.file_name and path not in done:
                        yield OutputFile(path, self.service.download(file))
                        done.add(path)
                return
            except ServiceError as error:
                if error.reason != Reason.LINK_EXPIRED or not done:
                    raise

    def delete(self, ref: str) -> None:
        """Delete a kernel with its outputs. One that is gone is no error."""
        try:
            self.service.delete(_ref(ref))
        except ServiceError as error:
            if error.reason not in (*MISSING, Reason.REFUSED) or self.exists(ref):
                raise


def _ref(text: str) -> KernelRef:
    owner, _, slug = text.partition("/")
    return KernelRef(owner, slug)


def _account_here(settings: KaggleSettings) -> str:
    """Return the account of the credentials here, which only the service knows for an access token. Raises ServiceAuthError."""
    first = next(logins(os.environ, Path.home()), None)
    if first is not None and first.user and first.kind != "token":
        return first.user
    return log_in(os.environ, Path.home(), settings.api).user
