"""Generated streams of files, as a hostile host sends them for `pull` and answers to what is shipped.

Most messages are what an honest agent sends, so that the hostile one among them meets a client that is in the midst of it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.config import resolve
from launcher.copy.local_copy import LocalCopy
from launcher.errors import LaunchError
from launcher.runs.launch.shipping import ship as ship_load
from launcher.runs.pull.copying import copy
from launcher.runs.pull.pulling import Choice, pull
from launcher.transport.channel import AgentChannel
from launcher.transport.client.host_client import HostClient
from launcher.upload import loading
from launcher.upload.upload_history import UploadHistory
from launcher.values.host import Host

RUN = "0101-x-abcd"
HELLO = b"LAUNCH-AGENT 1 have " + b"0" * 32 + b"\n"
_PATHS = (
    *("artifacts/weights", "artifacts/a/b", "code/log.csv", "code/out/x", "checkpoints/step-1/state", "home/note", "work/y"),
    *("artifacts/A/b", "artifacts/weights/under", "code/loss.png", "code/runs/x", "artifacts/.parts/x", "code/HOME/x", "code/x\ny"),
)  # fmt: skip
_HOSTILE = (
    *("../x", "artifacts/../../x", "/etc/passwd", "artifacts//x", "artifacts/./x", "plan.json", "", "artifacts", "code/\0", "code/.."),
    *("artifacts/" + "n" * 300, "artifacts/" + "a/" * 1500 + "x", "\ud800/x", "artifacts/\ud800", "code/\x1b]0;x\x07", "checkpoints/\\x"),
    *("artifacts/é", "artifacts/e\u0301", "0001/log.txt", ".pulled.jsonl", "code/" + "x" * 5000, "ARTIFACTS/x", "work/../../../x"),
)  # fmt: skip
_VALUES = (
    *(None, True, -1, 0, 1, 2**53, 2**53 + 1, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "7", "x" * 3000, "\ud800"),
    *([], {}, [[[[]]]], {"a": None}, "artifact", "checkpoint"),
)  # fmt: skip
_SIZES = (0, 1, 3, 40, 5000, 70_000)
_MOST = 200


class ScriptLink:
    """A host that says what was written down for it, in pieces, whatever it is asked, and then hangs up."""

    about = "a script"

    def __init__(self, said: bytes, most: int) -> None:
        self._said, self._most, self._at = memoryview(said), most, 0

    def settimeout(self, timeout: float | None) -> None:
        """Nothing is waited for."""

    def recv(self, size: int) -> bytes:
        """Return the next piece."""
        piece = bytes(self._said[self._at : self._at + min(size, self._most)])
        self._at += len(piece)
        return piece

    def sendall(self, data: bytes) -> None:
        """Take what the client says."""

    def close(self) -> None:
        """Hang up."""


class Quiet:
    """A stage that shows nothing."""

    text: str | None = None

    def progress(self, step: str) -> None:
        """Show nothing."""

    def moved(self, moved: object) -> None:
        """Show nothing."""


class _Host:
    """What a host says, message by message."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._said = [HELLO]
        self._id = 0
        self._malice = draw.choice([0.0, 0.01, 0.05, 0.3])

    def is_hostile(self) -> bool:
        """Whether the next thing is not what an honest host would say."""
        return self._draw.random() < self._malice

    def message(self, payload: bytes = b"", **values: Any) -> None:
        """Say one message; a hostile one has another size, other keys, or is no message."""
        draw = self._draw
        size: Any = len(payload)
        if self.is_hostile():
            size = draw.choice([*_VALUES, size - 1, size + 1, 1 << 22, (1 << 22) + 1, 1 << 28, (1 << 28) + 1])
        if self.is_hostile():
            values[draw.choice([*values, "id", "chunk", "ok", "error", "size"])] = draw.choice(_VALUES)
        line = json.dumps({**values, "size": size} if size != 0 or self.is_hostile() else values).encode()
        if self.is_hostile():
            line = draw.choice(
                [b"", b"[]", b"null", b"[" * 5000, b"9" * 5000, b'{"id":null}', line[:-1], b"\xff" + line]
            )
        self._said.append(line + b"\n" + payload)

    def stream(self, data: bytes) -> None:
        """Say a stream in chunks, and its end."""
        while data:
            size = self._draw.choice([1, 7, 4096, 1 << 16, len(data)]) if len(data) < 2000 else len(data)
            self.message(data[:size], chunk=size)
            data = data[size:]
        if not self.is_hostile():
            self.message(chunk=0)

    def answer(self, **values: Any) -> None:
        """Say the answer to the next question."""
        self._id += 1
        for _ in range(self._draw.choice([0, 0, 0, 3, 50]) if self.is_hostile() else 0):
            self.message(id=None, error={"code": "unknown-verb", "message": "no"})
        if self.is_hostile():
            code = self._draw.choice(["changed", "os", "no-run", None, 7])
            self.message(
                id=self._id, error={"code": code, "message": self._draw.choice(_VALUES), "values": values}
            )
        else:
            self.message(id=self._id, ok=values)

    def altered(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row about a file, with another value in it if it is hostile."""
        if self.is_hostile():
            row = {**row, self._draw.choice([*row]): self._draw.choice([*_VALUES, *_HOSTILE])}
        return row

    def bytes(self) -> bytes:
        """Return all that was said, torn or with a byte changed if it is hostile."""
        said = bytearray(b"".join(self._said))
        if self.is_hostile():
            del said[self._draw.randrange(len(HELLO), len(said) + 1) :]
        if self.is_hostile() and len(said) > len(HELLO):
            said[self._draw.randrange(len(HELLO), len(said))] = self._draw.randrange(256)
        return bytes(said)


def _rows(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps([*row.values()]).encode() + b"\n" for row in rows)


def _pulled(draw: random.Random) -> _Host:
    """Return a host that sends files: the list, the digests, the bytes."""
    host = _Host(draw)
    paths = draw.sample(_PATHS, draw.randrange(1, 5))
    if host.is_hostile():
        paths.append(draw.choice(_HOSTILE))
    data = {path: draw.randbytes(draw.choice(_SIZES)) for path in paths}
    if draw.random() < 0.2:
        data = dict.fromkeys(paths, draw.randbytes(3))
    for _ in range(draw.choice([1, 1, 3])):  # what has changed meanwhile is asked for again
        kinds = {"artifacts": "artifact", "checkpoints": "checkpoint"}
        listed = [
            {
                "path": path,
                "kind": kinds.get(path.split("/")[0], "output"),
                "size": len(data[path]),
                "changed_ns": 5,
            }
            for path in paths
        ]
        host.stream(_rows([host.altered(row) for row in listed]))
        host.answer(
            left_out={draw.choice(_HOSTILE): "why"} if host.is_hostile() else {},
            now_ns=draw.choice([10, 10**18]),
        )
        contents = [
            {
                "path": path,
                "size": len(data[path]),
                "changed_ns": 5,
                "sha256": hashlib.sha256(data[path]).hexdigest(),
            }
            for path in sorted(paths, key=lambda path: (len(data[path]), path))
        ]
        host.stream(b"12\n" + _rows([host.altered(row) for row in contents]))
        host.answer(left_out={})
        sent = dict.fromkeys((row["sha256"] for row in contents), b"")
        sent |= {row["sha256"]: data[row["path"]] for row in contents}
        whole = b"".join(sent.values())
        host.stream(whole + b"more" if host.is_hostile() else whole[1:] if host.is_hostile() else whole)
        host.answer()
    return host


def pull_or_copy(seed: int, folder: Path) -> None:
    """Pull or copy from a generated host: files come below the run's folder, or the destination, and nowhere else."""
    draw = random.Random(seed)
    home = folder / "runs"
    local_copy = LocalCopy(RUN, home)
    local_copy.folder.mkdir(parents=True)
    (folder / "yours").write_bytes(b"mine")
    said = _pulled(draw).bytes()
    with _desk(said, draw) as desk, contextlib.suppress(LaunchError):
        if draw.random() < 0.7:
            choice = Choice(10**9, everything=draw.random() < 0.8)
            pull(desk, local_copy, choice, Quiet())
        else:
            target = folder / "copies"
            target.mkdir()
            path = draw.choice(["artifacts", "code", *_PATHS[:4]])
            copy(desk, local_copy, path, f"{target}/", lambda _places: True, _stage)
    _check(folder, len(said))


def _check(folder: Path, most: int) -> None:
    """Raise AssertionError if something came to another place, or if more is here than was sent."""
    assert (folder / "yours").read_bytes() == b"mine"
    assert {path.name for path in folder.iterdir()} <= {"runs", "yours", "copies"}
    assert {path.name for path in (folder / "runs").iterdir()} == {RUN}
    sizes = [path.lstat().st_size for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in folder.rglob("*") if path.is_symlink()]
    assert sum(sizes) <= 3 * most + (1 << 16)  # twins, and the record of what came


def _desk(said: bytes, draw: random.Random) -> HostClient:
    return HostClient(AgentChannel("box", ScriptLink(said, draw.choice([1 << 18, 4096, 61]))))


@contextlib.contextmanager
def _stage() -> Iterator[Quiet]:
    yield Quiet()


@functools.cache
def _load() -> loading.Load:
    """A small project, collected once."""
    folder = tempfile.TemporaryDirectory(prefix="fuzz-load-")
    _KEPT.append(folder)
    for name, text in (("train.py", "print(1)\n"), ("a/b.txt", "text"), ("empty", "")):
        path = Path(folder.name) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    before = os.getcwd()
    os.chdir(folder.name)
    try:
        return loading.load(resolve.task(None, ["python", "train.py"], [], None))
    finally:
        os.chdir(before)


_KEPT: list[object] = []


def ship(seed: int, folder: Path) -> None:
    """Send a small project to a generated host: it asks for files that it lacks, again and again, or for others."""
    draw = random.Random(seed)
    load = _load()
    local_copy = LocalCopy(RUN, folder / "runs")
    known = [hashlib.sha256(text).hexdigest() for text in (b"print(1)\n", b"text", b"")]
    host = _Host(draw)
    for _ in range(draw.randrange(1, 6)):
        wanted: list[Any] = draw.sample(known, draw.randrange(4))
        if host.is_hostile():
            wanted.insert(draw.randrange(len(wanted) + 1), draw.choice([*_VALUES, *_HOSTILE, known[0]]))
        if host.is_hostile():
            wanted *= draw.choice([2, _MOST])
        host.answer(missing=draw.choice(_VALUES) if host.is_hostile() else wanted)
    host.answer(missing=[])
    with _desk(host.bytes(), draw) as desk, contextlib.suppress(LaunchError):
        ship_load(desk, load, UploadHistory(folder, Host(name="box", address="box")), local_copy, Quiet())


SUBJECTS: dict[str, Callable[[int, Path], None]] = {"file streams": pull_or_copy, "ship answers": ship}
