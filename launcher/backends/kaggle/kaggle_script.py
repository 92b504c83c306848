"""The script of a segment: a short stub, and a payload with the agent, the settings and the run's folder.

Pure: the same inputs give the same bytes. Files that do not fit go into a separate archive, for a dataset.
Kaggle's service returns a script, so a client without the run's files can read there how the run was started.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import gzip
import hashlib
import io
import lzma
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from launcher.backends.base.session_preview import ScriptParts
from launcher.backends.kaggle.kaggle_kernel import SOURCE_BYTES
from launcher.backends.spool.segment_files import TREE, Member
from launcher.backends.spool.segment_settings import TREE_SUFFIX, SegmentSettings, SegmentTree
from launcher.errors import BadFileError

MAX_BYTES = SOURCE_BYTES
"""The largest text of a script."""
MAX_RAW_BYTES = 32 * MAX_BYTES
"""The largest size of a run's folder that may fit: code compresses to a tenth, models hardly at all."""
AGENT, SETTINGS, RUN = "agent.pyz", "segment.json", "run/"
LINE = 120
MAX_UNPACKED_BYTES = 4 * MAX_RAW_BYTES
"""The largest payload that is unpacked from a script that the service returns: a few bytes may expand to very many."""
_PIECE = 1 << 20

_STUB = '''\
"""{title}

launcher pushed this script. It unpacks what it carries below into a temporary folder: launcher's agent, the run's plan, and
the code, unless that is in a dataset. Then the agent takes over: it trains, prints what it records as lines that begin with
%launch-frame, and ends before the session's limit. What lies in the working folder then is the session's output.
"""

import base64, hashlib, io, lzma, os, subprocess, sys, tarfile, tempfile

SHA256 = "{digest}"
WORKING = os.environ.get("LAUNCH_KAGGLE_WORKING", "/kaggle/working")
INPUT = os.environ.get("LAUNCH_KAGGLE_INPUT", "/kaggle/input")


def main():
    payload = base64.b85decode("".join(PAYLOAD.split()))
    if hashlib.sha256(payload).hexdigest() != SHA256:
        sys.exit("launch: this script is not as it was pushed")
    folder = tempfile.mkdtemp(prefix="launch-")
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(payload))) as archive:
        archive.extractall(folder, **({{"filter": "tar"}} if hasattr(tarfile, "tar_filter") else {{}}))
    sys.stdout.flush()
    agent = os.path.join(folder, "agent.pyz")
    words = [sys.executable, "-I", agent, "segment", folder, WORKING, INPUT]
    # A process of its own, whose lines are printed here: a service may run this script inside a notebook's kernel.
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        for line in io.TextIOWrapper(process.stdout, errors="replace"):
            print(line, end="", flush=True)
    if process.returncode:
        sys.exit("launch: the session ended with %d" % process.returncode)


PAYLOAD = """
{text}
"""

main()
'''
_DIGEST = re.compile(r'^SHA256 = "([0-9a-f]{64})"\s*$', re.MULTILINE)
_TEXT = re.compile(r'^PAYLOAD = """\s*\n(.*?)\n"""\s*$', re.MULTILINE | re.DOTALL)


def payload(agent: bytes, settings: SegmentSettings, run: Iterable[Member]) -> bytes:
    """Return the payload of a segment: a compressed archive of the agent, the settings, and the run's folder."""
    members = [
        Member.of(AGENT, agent),
        Member.of(SETTINGS, settings.to_file()),
        *(member._replace(path=RUN + member.path) for member in run),
    ]
    return _compressed(members)


def _compressed(members: Iterable[Member]) -> bytes:
    buffer = io.BytesIO()
    _write_tar(buffer, members)
    # A higher preset takes twice as long, and saves a twentieth.
    return lzma.compress(buffer.getvalue(), preset=4)


def script(payload: bytes, title: str = "A session of a run of launcher.") -> str:
    """Return the text of the script with a payload."""
    text = base64.b85encode(payload).decode()
    lines = "\n".join(text[at : at + LINE] for at in range(0, len(text), LINE))
    return _STUB.format(title=title, digest=hashlib.sha256(payload).hexdigest(), text=lines)


def payload_of(text: str) -> bytes:
    """Return the payload of a script's text as the service returns it, perhaps with other line ends.

    Raises BadFileError for another script, or for one that was changed.
    """
    digest, found = _DIGEST.search(text), _TEXT.search(text.replace("\r\n", "\n"))
    if digest is None or found is None:
        raise BadFileError("the kernel's source is not a script of launcher's")
    try:
        data = base64.b85decode("".join(found[1].split()))
    except ValueError:
        data = b""
    if hashlib.sha256(data).hexdigest() != digest[1]:
        raise BadFileError("the kernel's source was changed since launcher pushed it")
    return data


def unpacked(payload: bytes) -> Mapping[str, bytes]:
    """Return the files of a payload by path, e.g. `segment.json` and `run/control/plan.json`, without links.

    Raises BadFileError as `opened` does.
    """
    with opened(payload) as archive:
        opener = {member.name: archive.extractfile(member) for member in archive if member.isreg()}
        return {path: file.read() for path, file in opener.items() if file is not None}


def extract_run(payload: bytes, folder: Path) -> None:
    """Extract the run's folder from a payload, with files, links and modes as packed. Raises BadFileError."""
    with opened(payload) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # missing before Python 3.11.4
        for member in archive:
            if member.name.startswith(RUN):
                member.name = member.name.removeprefix(RUN)
                archive.extract(member, folder)


@contextlib.contextmanager
def opened(payload: bytes) -> Iterator[tarfile.TarFile]:
    """Open the archive of a payload.

    Raises BadFileError if it is no archive, has a path that leads out of it, or is larger when unpacked than
    any payload that launcher pushes.
    """
    try:
        unpacking = lzma.LZMADecompressor()
        data = unpacking.decompress(payload, MAX_UNPACKED_BYTES)
        if not unpacking.eof:
            raise BadFileError("the payload of a kernel's script is cut, or too large")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            _check(archive)
            yield archive
    except (lzma.LZMAError, tarfile.TarError, EOFError, binascii.Error) as error:
        raise BadFileError(f"the payload of a kernel's script cannot be read: {error}") from None


def _check(archive: tarfile.TarFile) -> None:
    """Raise BadFileError unless an archive is safe to unpack.

    A sparse file may be larger than the archive itself.
    """
    for member in archive:
        if member.name.startswith("/") or ".." in member.name.split("/") or member.issparse():
            raise BadFileError(f"the payload of a kernel's script holds {member.name!r}")


# files too large for a script


def may_fit(run: Iterable[Member]) -> bool:
    """Whether a run's folder is small enough to try packing it into a script."""
    return sum(member.size for member in run) <= MAX_RAW_BYTES


def fits(text: str) -> bool:
    """Whether a script is small enough to push."""
    return len(text.encode()) <= MAX_BYTES


def write_tree(target: IO[bytes], run: Iterable[Member]) -> SegmentTree:
    """Write the archive of a run's work/. Return its name and digest, which depend only on the contents."""
    members = (member._replace(path=member.path.removeprefix(TREE)) for member in run if member.is_in_tree)
    hashing = _Hashing(target)
    with gzip.GzipFile(filename="", mode="wb", fileobj=hashing, mtime=0, compresslevel=6) as file:
        _write_tar(file, members)
    digest = hashing.digest.hexdigest()
    return SegmentTree(file=f"launch-{digest[:16]}{TREE_SUFFIX}", sha256=digest)


def parts(agent: bytes, settings: SegmentSettings, run: Iterable[Member]) -> ScriptParts:
    """Return the sizes of a script's parts. A tree that would make it too large is in a separate archive."""
    members = list(run)
    records = [member for member in members if not member.is_in_tree]
    tree = [member for member in members if member.is_in_tree]
    total = len(script(payload(agent, settings, members))) if may_fit(members) else MAX_BYTES + 1
    is_inside = total <= MAX_BYTES
    return ScriptParts(
        total=total if is_inside else len(script(payload(agent, settings, records))),
        stub=len(script(b"")),
        agent=_text_bytes([Member.of(AGENT, agent)]),
        records=_text_bytes([Member.of(SETTINGS, settings.to_file()), *records]),
        tree=None if not is_inside else _text_bytes(tree) if tree else 0,
        archived=0 if is_inside else sum(member.size for member in tree),
    )


def _text_bytes(members: Iterable[Member]) -> int:
    """Return the number of bytes of text that some files take if packed alone."""
    return len(base64.b85encode(_compressed(members)))


class _Hashing:
    """Writes to a target and hashes the data."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self.digest = hashlib.sha256()

    def write(self, data: bytes, /) -> int:
        self.digest.update(data)
        return self._target.write(data)

    def flush(self) -> None:
        self._target.flush()


def _write_tar(target: IO[bytes] | gzip.GzipFile, members: Iterable[Member]) -> None:
    """Write an archive that does not depend on the time, place and user of its making. Paths are sorted."""
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_PIECE) as archive:
        for member in sorted(members, key=lambda member: member.path):
            entry = tarfile.TarInfo(member.path)
            entry.mode = 0o755 if member.is_executable else 0o644
            if member.link is not None:
                entry.type, entry.linkname = tarfile.SYMTYPE, member.link
                archive.addfile(entry)
                continue
            if member.is_folder:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
                continue
            entry.size = member.size
            with member.open() as file:
                archive.addfile(entry, file)
