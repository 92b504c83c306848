"""The unified diff between the code that was sent for one run and for another.

The client records the path of each file, not its contents. If a file has changed on this computer since then,
its contents are fetched from the run's host, which keeps the sent files until the run is removed.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from launcher.base.client_files import read_regular
from launcher.base.text import printable
from launcher.compare.code_differences import FileDifference, file_differences
from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, LaunchError, RunError
from launcher.runs.run_client import connect
from launcher.upload import upload_record
from launcher.upload.upload_record import Manifest, UploadRecord

if TYPE_CHECKING:
    from launcher.runs.follow.view import Stage
    from launcher.transport.channel import Incoming
    from launcher.transport.client.host_client import HostClient

MAX_BYTES = 1_000_000
"""The size limit of a file, in bytes: no diff is made of a larger file."""
_MANIFEST = TypeAdapter(Manifest, config=ConfigDict(defer_build=True))
_PIECE = 1 << 18


class FileDiff(NamedTuple):
    """A file that differs: its unified diff, or the reason why it has none."""

    path: str
    text: str | None
    why: str | None


class CodeDiff(NamedTuple):
    """The files of the code that differ, and the errors that caused missing diffs."""

    files: list[FileDiff]
    errors: list[LaunchError]


def code_diff(first: LocalCopy, second: LocalCopy, stage: Stage) -> CodeDiff:
    """Return the code differences of two runs. Files that have since changed here are fetched from the runs' hosts."""
    sides = (_Side(first), _Side(second))
    errors: list[LaunchError] = []
    with contextlib.ExitStack() as stack:
        clients = _Clients(stack, stage)
        for side in sides:
            errors += side.learn(clients)
        if errors:
            return CodeDiff([], errors)
        differing = file_differences([side.manifest for side in sides])
        for number, side in enumerate(sides):
            paths = [one.path for one in differing if one.versions[number] is not None]
            errors += side.read(paths, sides, clients)
    return CodeDiff([_file_diff(one, sides) for one in differing], errors)


class _Clients:
    """The host clients of the runs' hosts, each opened once, at its first use."""

    def __init__(self, stack: contextlib.ExitStack, stage: Stage) -> None:
        self._stack, self._stage = stack, stage
        self._open: dict[str, HostClient] = {}

    def of(self, local_copy: LocalCopy) -> HostClient:
        host = local_copy.host()
        if local_copy.is_freed:
            raise RunError(
                f"{local_copy.run} was removed from {host.name}, with the code that was sent for it"
            )
        key = host.model_dump_json()
        if key not in self._open:
            self._stage.progress(f"the code of {local_copy.short} from {host.name}")
            self._open[key] = self._stack.enter_context(connect(host))
        local_copy.check_root(host.name, self._open[key].root_id)
        return self._open[key]


class _Side:
    """One of the two runs: its sent files, and the contents that were read, by their SHA-256."""

    def __init__(self, local_copy: LocalCopy) -> None:
        self.local_copy = local_copy
        recorded = upload_record.read(local_copy)
        self.is_known = recorded is not None
        self.sent = recorded or UploadRecord({}, {})
        self._contents: dict[str, bytes] = {}

    @property
    def manifest(self) -> Mapping[str, Mapping[str, str | int]]:
        """The sent files, by path."""
        return self.sent.manifest

    def text(self, path: str) -> list[str]:
        """Return the lines of a file of the code, with line ends. Raises ValueError with the reason if they cannot be compared."""
        entry = self.manifest[f"code/{path}"]
        if "sha256" not in entry:
            raise ValueError("a link or an empty folder in one of the runs")
        if int(entry["size"]) > MAX_BYTES:
            raise ValueError("larger than 1 MB")
        data = self._contents.get(str(entry["sha256"]))
        if data is None:
            raise ValueError(f"the files sent for {self.local_copy.short} are not available")
        if b"\0" in data:
            raise ValueError("not text")
        try:
            lines = data.decode().split("\n")
        except UnicodeDecodeError:
            raise ValueError("not text") from None
        return [*(f"{line}\n" for line in lines[:-1]), *filter(None, lines[-1:])]

    def learn(self, clients: _Clients) -> list[LaunchError]:
        """Ask the host for the run's list of files, if this client has no record of it; return the errors."""
        if self.is_known:
            return []
        try:
            answer = clients.of(self.local_copy).runs.tree(self.local_copy.run)
            self.sent = UploadRecord(_MANIFEST.validate_json(answer), {})
            _ = self.sent.sizes  # raises KeyError if a file has no size
        except LaunchError as error:
            return [error]
        except (ValueError, KeyError):
            return [
                RunError(f"{self.local_copy.host().name} sent no list of the files of {self.local_copy.run}")
            ]
        return []

    def read(self, paths: Iterable[str], sides: Iterable[_Side], clients: _Clients) -> list[LaunchError]:
        """Read files of the code, here if they are unchanged, else on the host; return the errors."""
        sizes = self.sent.sizes
        digests = {str(self.manifest[f"code/{path}"].get("sha256")) for path in paths}
        wanted = {sha256 for sha256 in digests if sizes.get(sha256, MAX_BYTES + 1) <= MAX_BYTES}
        for side in sides:
            self._read_here(side.sent.sources, wanted)
        missing = sorted(wanted - self._contents.keys())
        try:
            return self._fetch(clients.of(self.local_copy), missing, sizes) if missing else []
        except LaunchError as error:
            return [error]

    def _read_here(self, sources: Mapping[str, str], wanted: set[str]) -> None:
        """Read the files on this computer from which the contents were sent, and keep those that are unchanged."""
        for sha256 in wanted & sources.keys():
            with contextlib.suppress(OSError):
                data = read_regular(sources[sha256], MAX_BYTES)
                if hashlib.sha256(data).hexdigest() == sha256:
                    self._contents[sha256] = data

    def _fetch(
        self, client: HostClient, missing: Sequence[str], sizes: Mapping[str, int]
    ) -> list[LaunchError]:
        def ask(files: Sequence[str]) -> None:
            client.runs.contents(self.local_copy.run, files, partial(self._take, files, sizes, client.host))

        try:
            ask(missing)
        except AgentError as refused:
            for sha256 in missing if len(missing) > 1 else ():  # if one file is lost, the host refuses all
                with contextlib.suppress(AgentError):
                    ask([sha256])
            return [refused]
        return []

    def _take(self, files: Sequence[str], sizes: Mapping[str, int], host: str, stream: Incoming) -> None:
        for sha256 in files:
            pieces, left = [], sizes[sha256]
            while left and (piece := stream.read(min(left, _PIECE))):
                left -= len(piece)
                pieces.append(piece)
            data = b"".join(pieces)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise RunError(f"{host} no longer has a file of {self.local_copy.run} as it was sent")
            self._contents[sha256] = data


def _file_diff(difference: FileDifference, sides: Sequence[_Side]) -> FileDiff:
    path, versions = difference
    try:
        before, after = (
            [] if version is None else side.text(path) for side, version in zip(sides, versions, strict=True)
        )
    except ValueError as error:
        return FileDiff(path, None, str(error))
    old, new = (
        "/dev/null" if version is None else printable(f"{side.local_copy.short}/{path}")
        for side, version in zip(sides, versions, strict=True)
    )
    text = "".join(_ended(difflib.unified_diff(before, after, old, new)))
    if text:
        return FileDiff(path, text, None)
    return FileDiff(
        path, None, "an empty file" if None in versions else "the same text, executable in one run"
    )


def _ended(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a diff; mark a missing newline at the end of a file as diff and git do."""
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
