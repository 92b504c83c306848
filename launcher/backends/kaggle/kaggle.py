"""Kaggle as a service for a spool: a segment of a run is a kernel, whose log and outputs go into the spool.

All code specific to Kaggle is here and in the `kaggle_*` modules: names, machines, the content of a push, the
quota. Nothing was tested against the real service. The tests use a fake service that answers as Kaggle's own
client expects.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from platformdirs.unix import Unix
from pydantic import ValidationError
from rich.filesize import decimal

from launcher.agent.record.rundir import RUN_ID, Run
from launcher.backends.kaggle import kaggle_log
from launcher.backends.kaggle.kaggle_credentials import logins
from launcher.backends.kaggle.kaggle_host import API, KaggleSettings
from launcher.backends.kaggle.kaggle_kernel import (
    NO_ACCELERATOR,
    SLUG_CHARACTERS,
    KernelRef,
    NewKernel,
    OutputFile,
)
from launcher.backends.kaggle.kaggle_kernel import KaggleReason as Reason
from launcher.backends.kaggle.kaggle_script import (
    SETTINGS,
    extract_run,
    fits,
    may_fit,
    payload,
    payload_of,
    script,
    unpacked,
    write_tree,
)
from launcher.backends.kaggle.kaggle_service import HOST, KaggleService, log_in
from launcher.backends.kaggle.kaggle_session import segment_settings
from launcher.backends.spool.segment_files import Member, record_files, work_files
from launcher.backends.spool.segment_record import SegmentRecord, SegmentStatus
from launcher.backends.spool.segment_settings import SegmentSettings, SegmentTree
from launcher.backends.spool.segments import LogPiece, Packed, SegmentLook, SegmentOutput, Segments
from launcher.backends.spool.spool_trees import KeptTree, SpoolTrees
from launcher.backends.spool.spooled_client import SpooledClient, connect_spool
from launcher.base.text import printable
from launcher.errors import BadFileError, ServiceAuthError, ServiceError, ServiceUnreachableError
from launcher.transport.agent_file import agent_file
from launcher.transport.channel import AgentChannel
from launcher.transport.local import LocalConnection
from launcher.transport.shared_connection import SharedConnection
from launcher.values.host import Host
from launcher.values.plan import Plan

STATUSES: dict[str, SegmentStatus] = {
    "QUEUED": "queued",
    "RUNNING": "running",
    "CANCEL_REQUESTED": "running",
    "COMPLETE": "over",
    "ERROR": "over",
    "CANCEL_ACKNOWLEDGED": "over",
}
"""The segment status for each session status.

Any other session status counts as running: an unknown word does not prove an end.
"""
WORDS = {"COMPLETE": "its session has ended", "ERROR": "its session ended in an error"}
OUTPUT_ROOT = "launch/runs"
"""The folder of runs in a kernel's working folder, which is the kernel's output."""
BESIDE = "work/working"
"""The folder in a run for files that its job wrote directly into the working folder, as Kaggle scripts do."""
TREE = "tree.json"
SEGMENT_DIGITS = 3
MIN_S = 600.0
"""Seconds of quota needed to begin a session on a GPU.

A session shorter than this would end before it has saved anything.
"""
DATASET_S, DATASET_POLL_S = 1800.0, 3.0
MISSING = (Reason.NOT_FOUND, Reason.FORBIDDEN, Reason.UNAUTHORIZED)
"""The reasons for not showing what does not exist; `exists` checks the credentials."""


def open_account(host: Host, settings: KaggleSettings) -> SpooledClient:
    """Return the client of an account: its spool, and the service, which is not contacted yet.

    Raises ServiceAuthError without credentials, or HostError.
    """
    return _account(settings).client(host)


def open_account_connection(host: Host, settings: KaggleSettings) -> SharedConnection:
    """Return a shared connection to an account. Its clients share the spool's agents, login and segments.

    The first client raises ServiceAuthError without credentials, or HostError.
    """
    account = functools.cache(lambda: _account(settings))
    return SharedConnection(
        host,
        lambda: account().connection(host),
        lambda calls, reader: SpooledClient(calls, account().segments, reader),
    )


def _account(settings: KaggleSettings) -> Account:
    return Account(settings, settings.account or _account_here(settings))


class Account:
    """A Kaggle account, as the service of its spool."""

    name = HOST

    def __init__(self, settings: KaggleSettings, name: str) -> None:
        """Store the arguments. The service is not contacted."""
        self._settings = settings
        self._service: KaggleService | None = None
        self.user = name
        self.place = f"{HOST}-{name}{_suffix(settings.api)}"

    def client(self, host: Host) -> SpooledClient:
        """Return a client of the account's spool, with its own agent. Raises HostError."""
        link = self.connection(host).open_link()
        return SpooledClient(AgentChannel(host.name, link), self.segments)

    def connection(self, host: Host) -> LocalConnection:
        """Return the connection to the account's spool. Raises HostError."""
        return connect_spool(host, self.spool, self.place)

    @functools.cached_property
    def segments(self) -> Segments:
        """The segments of the account's runs."""
        return Segments(self, self.spool, keeps_kernels=self._settings.keep_kernels)

    @property
    def spool(self) -> Path:
        """The spool's folder, in this user's data."""
        return _spools() / self.place

    @property
    def service(self) -> KaggleService:
        """The service with a valid login.

        A run may be followed for days, so a login that expires soon is replaced. Raises ServiceAuthError,
        BadFileError or ServiceUnreachableError.
        """
        if self._service is None or self._service.is_out_of_date:
            self._service = self._logged_in()
        return self._service

    def _logged_in(self) -> KaggleService:
        service = log_in(os.environ, Path.home(), self._settings.api)
        if service.user.lower() != self.user.lower():
            words = (
                f"{HOST}: the credentials here are {service.user}'s, but the host is of account {self.user}"
            )
            raise ServiceAuthError(
                HOST,
                Reason.UNAUTHORIZED,
                f'{words}\n  set account = "{service.user}", or log in as {self.user}',
            )
        return service

    @property
    def about(self) -> str:
        """The account, and its remaining GPU hours of the week. Raises ServiceError."""
        return f"Kaggle as {self.user}, {self.service.quota().title}"

    # a run's work files

    def send_tree(self, run: Run, say: Callable[[str], None]) -> str:
        """Prepare a run's work files for packing.

        If they are too large for a script, upload them as a dataset. The dataset is named by its content.
        Return a description. Raises ServiceError.
        """
        say("the agent, code and data into one script")
        work = [*work_files(run, only_shipped=False)]
        if may_fit(work):
            text = self._script(run, work, session_s=1.0)
            if fits(text):
                return f"{decimal(len(text))} in one script"
        return self._send_archive(work, Path(run.control) / TREE, say)[1]

    def _send_archive(
        self, work: Sequence[Member], record: Path, say: Callable[[str], None]
    ) -> tuple[SegmentTree, str]:
        """Provide a dataset with an archive of these files, and record it.

        Return the archive and a description.
        """
        part = record.with_name(".tree")
        archive = part
        try:
            with part.open("wb") as file:
                tree = write_tree(file, work)
            words = f"{decimal(part.stat().st_size)} in the private dataset {self.user}/{tree.dataset}"
            self._trees.hold(tree.dataset)
            has = self._has_dataset(tree.dataset)
            if not has:
                archive = part.rename(record.with_name(tree.file))
                self._upload(archive, tree.dataset, say)
            record.write_text(tree.model_dump_json() + "\n")
            return tree, f"{words}, which already exists" if has else words
        finally:
            archive.unlink(missing_ok=True)

    def _upload(self, archive: Path, slug: str, say: Callable[[str], None]) -> None:
        say(f"uploading {decimal(archive.stat().st_size)}")
        token = self.service.upload(archive)
        with self._trees.making(slug, archive.stat().st_size):
            self.service.create_dataset(slug, [token])
        until = time.monotonic() + DATASET_S
        while not self._has_dataset(slug):
            if time.monotonic() > until:
                words = f"{HOST}: the dataset {self.user}/{slug} is not ready after {DATASET_S / 60:.0f} min"
                raise ServiceError(HOST, Reason.SILENT, f"{words}\n  type the same command again")
            say("waiting until Kaggle has processed it")
            time.sleep(DATASET_POLL_S)

    def _has_dataset(self, slug: str) -> bool:
        with _missing_is_no_error():
            return self.service.dataset_status(slug).is_ready
        return False

    def trees(self) -> list[KeptTree]:
        """Return the datasets made from this spool."""
        return self._trees.kept()

    def delete_tree(self, slug: str) -> bool:
        """Delete a dataset made from this spool, unless a run needs it. Return whether it is gone."""
        with self._trees.unneeded(slug) as is_unneeded:
            if is_unneeded:
                with _missing_is_no_error():
                    self.service.delete_dataset(slug)
            return is_unneeded

    @functools.cached_property
    def _trees(self) -> SpoolTrees:
        return SpoolTrees(self.spool)

    # segments

    def reference(self, run: str, segment: int) -> str:
        """Return `account/launch-RUN-SEGMENT`. The name in the run's id is cut if it is too long for Kaggle."""
        return str(KernelRef(self.user, f"launch-{_in_slug(run)}-{segment}"))

    def pack(self, run: Run, record: SegmentRecord) -> Packed:
        """Return a segment's script: the agent, the run's record, and its work files if no dataset has them.

        Without an earlier segment's outputs, the script gets all work files of the spool. Raises
        ServiceError, also if too little of the quota is left.
        """
        plan = self._plan_of(run)
        machine = NO_ACCELERATOR if plan.session is None else plan.session.machine
        session_s, has_earlier = self._session_s(machine), record.source is not None
        packed = functools.partial(
            self._script, run, session_s=session_s, segment=record.segment, has_earlier=has_earlier
        )
        shipped = [*work_files(run, only_shipped=True)]
        tree = self._tree_of(run)
        if tree is not None and not self._has_dataset(tree.dataset):  # it was deleted
            tree, _ = self._send_archive(shipped, Path(run.control) / TREE, _unheard)
        everything = shipped if has_earlier else [*work_files(run, only_shipped=False)]
        in_tree = {member.path for member in shipped} if tree is not None else set[str]()
        work = [member for member in everything if member.path not in in_tree]
        text = packed(work, tree=tree) if may_fit(work) else None
        if text is None or not fits(text):
            record_of_tree = Path(run.control) / f"tree-{record.segment}.json"
            tree, _ = self._send_archive(everything, record_of_tree, _unheard)
            text = packed([], tree=tree)
        return Packed(text, machine, session_s, () if tree is None else (tree.dataset,))

    def _script(self, run: Run, work: Iterable[Member], *, session_s: float, **told: Any) -> str:
        """Return a segment's script; `told` has its other settings."""
        plan, internet = self._plan_of(run), self._settings.internet
        settings = segment_settings(
            plan, run=run.id, place=self.place, internet=internet, session_s=session_s, **told
        )
        return script(payload(agent_file().data, settings, [*record_files(run), *work]))

    def _tree_of(self, run: Run) -> SegmentTree | None:
        """Return the archive of a run's uploaded files; None if its scripts carry them."""
        try:
            return SegmentTree.model_validate_json(Path(run.control, TREE).read_bytes())
        except FileNotFoundError:
            return None

    @staticmethod
    def _plan_of(run: Run) -> Plan:
        return Plan.model_validate_json(Path(run.plan).read_bytes())

    def _session_s(self, machine: str) -> float:
        """Return a session's time limit: the host's setting, but at most the remaining quota."""
        limit_s = self._settings.session_hours * 3600
        if machine == NO_ACCELERATOR:
            return limit_s
        quota = self.service.quota()
        left_s = limit_s if quota.gpu_quota is None else quota.gpu_quota.left_s
        if left_s < MIN_S:
            words = f"{HOST}: {left_s / 60:.0f} min are left of the week's hours on a GPU"
            raise ServiceError(HOST, Reason.QUOTA, f"{words}\n  {quota.title}")
        return min(limit_s, left_s)

    def push(self, record: SegmentRecord, packed: Packed) -> None:
        """Push a segment's script, once."""
        kernel = NewKernel(
            ref=_ref(record.ref),
            source=packed.script,
            machine=packed.machine,
            timeout_s=max(1, round(packed.session_s)),
            has_internet=self._settings.internet,
            datasets=(*self._settings.datasets, *(f"{self.user}/{slug}" for slug in packed.datasets)),
            models=self._settings.models,
            kernels=(record.source,) if record.source else (),
        )
        pushed = self.service.push(kernel)
        if str(pushed.landed).lower() != str(kernel.ref).lower():  # an account's name may have capitals
            words = f"{HOST}: {kernel.ref} was pushed, and landed at {pushed.landed}"
            if pushed.landed is not None and pushed.version_number == 1:  # so it did not exist before
                self._undo(pushed.landed)
            raise ServiceError(HOST, Reason.CONFLICT, words)
        if pushed.dropped:
            self._undo(kernel.ref)
            words = f"{HOST}: {kernel.ref} would run without {', '.join(pushed.dropped)}, and was deleted"
            raise ServiceError(
                HOST,
                Reason.INVALID_SOURCES,
                f"{words}\n  were they deleted on kaggle.com, or are they misspelt in the host's table?",
            )

    def _undo(self, ref: KernelRef) -> None:
        with contextlib.suppress(ServiceError):  # it stays on record and is deleted later
            self.delete(str(ref))

    def is_full(self, error: ServiceError) -> bool:
        """Whether a push was refused only temporarily: too many sessions run, or too many calls were made."""
        return error.reason in (Reason.SESSION_LIMIT, Reason.RATE_LIMIT)

    def exists(self, ref: str) -> bool:
        """Whether the account shows or lists a kernel.

        Kaggle answers 403 also for a kernel that it does not show yet.
        """
        if self.service.find(_ref(ref)) is not None:
            return True
        words = _ref(ref).slug.removeprefix("launch-").rpartition("-")[0]
        return ref in self.names(words)

    def look(self, ref: str) -> SegmentLook:
        """Return the service's status of a kernel's session.

        A user met a status call that failed for good while log and outputs were served (2026-06): then the
        log tells whether the session has ended.
        """
        try:
            said = self.service.status(_ref(ref))
        except ServiceError as error:
            if error.reason == Reason.SERVER_ERROR:
                is_over = self.service.has_whole_log(_ref(ref))
                if is_over is None:
                    raise
                return SegmentLook("over" if is_over else "running", "Kaggle's status call fails; by its log")
            if error.reason not in MISSING:
                raise
            return (
                SegmentLook(None)
                if self.exists(ref)
                else SegmentLook("deleted", "its kernel is gone from kaggle.com")
            )
        words = WORDS.get(said.status, "")
        if said.failure_message:
            words = f"{words or said.status.lower()}: {printable(said.failure_message[:200])}"
        return SegmentLook(STATUSES.get(said.status, "running"), words, said.status == "COMPLETE")

    def now(self) -> float:
        """Return the time by Kaggle's clock, from its last answer."""
        return self.service.now()

    def follow(self, ref: str, position: int) -> Iterator[LogPiece | None]:
        """Yield the pieces of a session's log."""
        return kaggle_log.follow(self.service, _ref(ref), position)

    def outputs(self, ref: str, run: str) -> Iterator[SegmentOutput]:
        """Yield the output files of a session: those of the run's folder, and others that its job wrote."""
        prefix = f"{OUTPUT_ROOT}/{run}/"
        for file in self.service.outputs(_ref(ref)):
            path = file.file_name.removeprefix(prefix)
            if path != file.file_name:
                yield SegmentOutput(path, self._pieces(ref, file))
            elif not path.startswith(f"{OUTPUT_ROOT}/"):
                yield SegmentOutput(f"{BESIDE}/{path}", self._pieces(ref, file))

    def _pieces(self, ref: str, file: OutputFile) -> Iterator[bytes]:
        """Yield the bytes of a file. If its link has expired, request a new one."""
        try:
            yield from self.service.download(file)
        except ServiceError as error:
            if error.reason != Reason.LINK_EXPIRED:
                raise
            listed = (one for one in self.service.outputs(_ref(ref)) if one.file_name == file.file_name)
            yield from self.service.download(next(listed, file))

    def delete(self, ref: str) -> bool:
        """Delete a kernel with its outputs. Return False if Kaggle shows none."""
        try:
            self.service.delete(_ref(ref))
        except ServiceError as error:
            if error.reason not in (*MISSING, Reason.REFUSED) or self.exists(ref):
                raise
            return False
        return True

    def names(self, words: str) -> dict[str, float | None]:
        """Return the kernels named `launch-…` whose names contain some words, each with its last push."""
        found = self.service.kernels(_in_slug(words) or "launch")
        return {str(ref): ran_at for ref, ran_at in found if ref.slug.startswith("launch-")}

    def unpack(self, ref: str, folder: Path) -> SegmentRecord | None:
        """Unpack the run in a kernel's script into a folder; None if the script is not launcher's."""
        kernel = self.service.find(_ref(ref))
        if kernel is None:
            return None
        try:
            carried = payload_of(kernel.blob.source or "")
            settings = SegmentSettings.model_validate_json(unpacked(carried)[SETTINGS])
            if not RUN_ID.fullmatch(settings.run) or self.reference(settings.run, settings.segment) != ref:
                return None  # perhaps a copy of a kernel of launcher
            extract_run(carried, folder)
        except (BadFileError, KeyError, ValidationError):
            return None
        if settings.tree is not None:
            (folder / "control" / TREE).write_text(settings.tree.model_dump_json() + "\n")
        sources = ["/".join(source.split("/")[:2]) for source in kernel.metadata.kernel_data_sources]
        return SegmentRecord(
            run=settings.run,
            segment=settings.segment,
            ref=ref,
            source=next(iter(sources), None),
            status="sent",
            time=time.time(),
            session_s=settings.session_s,
            other_client="latest",
        )


@contextlib.contextmanager
def _missing_is_no_error() -> Iterator[None]:
    try:
        yield
    except ServiceError as error:
        if error.reason not in MISSING:
            raise


def _unheard(_words: str) -> None:
    pass


def _in_slug(run: str) -> str:
    """Return a run's id, or a part of it, in the form used in the names of its kernels."""
    room = SLUG_CHARACTERS.stop - 1 - len("launch--") - SEGMENT_DIGITS
    if len(run) > room:
        head, _, tail = run.rpartition("-")
        run = f"{head[: room - len(tail) - 1]}-{tail}"
    return re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")


def _ref(text: str) -> KernelRef:
    owner, _, slug = text.partition("/")
    return KernelRef(owner, slug)


def _account_here(settings: KaggleSettings) -> str:
    """Return the account of the local credentials. For an access token, only the service knows it.

    If the credentials cannot be used, return the account of the only local spool: its files can be read
    without Kaggle. Raises ServiceAuthError, ServiceUnreachableError or BadFileError.
    """
    try:
        first = next(logins(os.environ, Path.home()), None)
        if first is not None and first.user and first.kind != "token":
            return first.user
        return log_in(os.environ, Path.home(), settings.api).user
    except (ServiceAuthError, ServiceUnreachableError, BadFileError):
        known = _accounts_with_a_spool(settings)
        if len(known) != 1:
            raise
        return known[0]


def _accounts_with_a_spool(settings: KaggleSettings) -> list[str]:
    start, end = f"{HOST}-", _suffix(settings.api)
    names = [path.name for path in _spools().glob(f"{start}*{end}")]
    accounts = [name.removeprefix(start).removesuffix(end) for name in names]
    return [
        name
        for name in accounts
        if Account(settings, name).place in names and (end or not _SUFFIX.search(name))
    ]


def _spools() -> Path:
    return Unix("launch").user_data_path / "spool"


def _suffix(api: str) -> str:
    """Return the suffix that separates the spools of other services from Kaggle's."""
    return "" if api == API else "-" + hashlib.sha256(api.encode()).hexdigest()[:8]


_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
