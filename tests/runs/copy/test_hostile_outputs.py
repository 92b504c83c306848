"""A host that lies about what a run wrote: nothing gets out of the run's folder here, and no more than was announced."""

import contextlib
import hashlib
import json
import os
import socket
import threading

import pytest

from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, ConnectionLostError, HostError, MalformedAnswerError, RunError
from launcher.runs import cleaning
from launcher.runs.pull.local_copies import LocalCopies
from launcher.runs.pull.pulling import Choice, pull
from launcher.transport.channel import AgentChannel
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host
from launcher.values.reported.checkpoint import sealed_checkpoint

RUN = "0101-sft-w8q2"
LIMIT = 2_000_000_000
DATA = b"data" * 100
SHA256 = hashlib.sha256(DATA).hexdigest()


class Quiet:
    """A stage that shows nothing."""

    text = None

    def progress(self, step):
        """Show nothing."""

    def moved(self, moved):
        """Show nothing."""


class Pair:
    """Our end of a socket pair, as a link."""

    about = "a pair"

    def __init__(self, ours):
        self.settimeout, self.recv, self.sendall, self.close = (
            ours.settimeout, ours.recv, ours.sendall, ours.close,
        )  # fmt: skip


def line(payload=b"", **values):
    return json.dumps({**values, **({"size": len(payload)} if payload else {})}).encode() + b"\n" + payload


def stream(*pieces):
    return b"".join(line(piece, chunk=len(piece)) for piece in pieces) + line(chunk=0)


def lines(*values):
    return stream(b"".join(json.dumps(value).encode() + b"\n" for value in values))


@pytest.fixture
def host():
    """Make desks whose host says this, whatever it is asked, and then hangs up."""
    with contextlib.ExitStack() as stack:

        def make(*said):
            ours, theirs = socket.socketpair()

            def talk():
                with contextlib.suppress(OSError):
                    theirs.sendall(b"LAUNCH-AGENT 1 have\n" + b"".join(said))
                    theirs.shutdown(socket.SHUT_WR)

            thread = threading.Thread(target=talk, daemon=True)
            thread.start()
            stack.callback(theirs.close)
            return stack.enter_context(HostClient(AgentChannel("box", Pair(ours))))

        yield make


@pytest.fixture
def local_copy(tmp_path):
    """A run that this client launched."""
    made = LocalCopy(RUN, tmp_path / "runs")
    made.bind_seen(Host(name="box"), "", None)
    made.artifacts.mkdir()
    (made.artifacts / "before").write_text("before")
    return made


def listed(*files, left_out=None):
    return lines(*files) + line(id=1, ok={"left_out": left_out or {}, "now_ns": 5})


def digested(*files):
    return lines(*files) + line(id=2, ok={})


GOOD = ["artifacts/a", "artifact", len(DATA), 1]
CONTENT = ["artifacts/a", len(DATA), 1, SHA256]
SENT = stream(DATA) + line(id=3, ok={})


def test_an_honest_host_is_believed(host, local_copy):
    """The pieces of this file, as they should be."""
    pull(host(listed(GOOD), digested(CONTENT), SENT), local_copy, Choice(LIMIT), Quiet())
    assert (local_copy.artifacts / "a").read_bytes() == DATA


PATHS = [
    *("../x", "artifacts/../../x", "/etc/x", "artifacts//x", "artifacts/./x", "artifacts", "control/x", "data/x", ""),
    *("artifacts/a\0b", "artifacts/" + "x" * 5000, "artifacts/" + "d/" * 1500 + "x", "artifacts/x/", "code/../x", "home/..", 7, None, ["artifacts/a"]),
]  # fmt: skip
WRONG_LISTS = {
    **{f"path {str(path)[:20]!r}": [[path, "artifact", 1, 1]] for path in PATHS},
    "a kind of its own": [["artifacts/a", "program", 1, 1]],
    "a size below zero": [["artifacts/a", "artifact", -1, 1]],
    "a size beyond all disks": [["artifacts/a", "artifact", 2**60, 1]],
    "sizes that add up beyond": [[f"artifacts/{name}", "artifact", 2**53, 1] for name in "ab"],
    "a size as text": [["artifacts/a", "artifact", "1", 1]],
    "twice": [GOOD, GOOD],
    "below a file": [GOOD, ["artifacts/a/b", "artifact", 1, 1]],
    "no list": [{"path": "artifacts/a"}],
    "a word": ["artifacts/a"],
}


@pytest.mark.parametrize("what", WRONG_LISTS)
def test_a_list_of_wrong_files_is_refused_whole(host, local_copy, tmp_path, what):
    """Nothing is asked for, nothing is written."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(MalformedAnswerError):
        pull(host(listed(*WRONG_LISTS[what])), local_copy, Choice(LIMIT), Quiet())
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != ".pull.lock"] == before


def test_names_that_are_no_text_are_refused(host, local_copy):
    """Bytes that are not UTF-8, a lone surrogate."""
    for raw in (
        b'["artifacts/\xff","artifact",1,1]\n',
        b'["artifacts/\\udc80","artifact",1,1]\n',
        b"{",
        b"\n",
    ):
        with pytest.raises(MalformedAnswerError):
            pull(host(stream(raw), line(id=1, ok={"now_ns": 5})), local_copy, Choice(LIMIT), Quiet())


def test_lists_and_lines_without_end_are_given_up(host, local_copy):
    """More files than a run may have, and a line that never ends: the memory here stays flat."""
    many = b"".join(b'["artifacts/%d","artifact",1,1]\n' % number for number in range(210_000))
    pieces = [many[start : start + (1 << 20)] for start in range(0, len(many), 1 << 20)]
    with pytest.raises(MalformedAnswerError, match="more than 200,000 files"):
        pull(host(stream(*pieces)), local_copy, Choice(LIMIT), Quiet())
    name = "x" * 4000  # 200,000 of these would take 800 MB here
    long = b"".join(b'["artifacts/%s%d","artifact",1,1]\n' % (name.encode(), number) for number in range(250))
    with pytest.raises(MalformedAnswerError, match="its names are too long"):
        pull(host(stream(*[long] * 140)), local_copy, Choice(LIMIT), Quiet())
    with pytest.raises(MalformedAnswerError, match="a line does not end"):
        pull(host(stream(*[b"[" * 50_000] * 3)), local_copy, Choice(LIMIT), Quiet())


WRONG_DIGESTS = {
    "another file": [["artifacts/b", 1, 1, SHA256]],
    "the same file twice": [CONTENT, CONTENT],
    "a path that leads up": [["../x", 1, 1, SHA256]],
    "no digest": [["artifacts/a", 1, 1, "../../x"]],
    "a digest in capitals": [["artifacts/a", 1, 1, SHA256.upper()]],
}


@pytest.mark.parametrize("what", WRONG_DIGESTS)
def test_digests_of_other_files_are_refused(host, local_copy, what):
    """Only what was asked for counts; a digest is 64 hexadecimal digits, since a file here is named after it."""
    with pytest.raises(MalformedAnswerError):
        pull(host(listed(GOOD), digested(*WRONG_DIGESTS[what])), local_copy, Choice(LIMIT), Quiet())
    assert os.listdir(local_copy.artifacts) == ["before"]


def test_a_file_that_outgrows_the_limit_between_list_and_digests_stays_there(host, local_copy):
    """A list of small files is no way around the limit."""
    pull(host(listed(GOOD), digested(["artifacts/a", 10**9, 1, SHA256])), local_copy, Choice(10**6), Quiet())
    assert os.listdir(local_copy.artifacts) == ["before"]


WRONG_BYTES = {
    "other bytes": (stream(b"evil" * 100) + line(id=3, ok={}), RunError),
    "fewer bytes": (stream(DATA[:-1]) + line(id=3, ok={}), MalformedAnswerError),
    "more bytes": (stream(DATA + b"x" * 1000) + line(id=3, ok={}), MalformedAnswerError),
    "bytes without end": (b"".join(line(b"x" * (1 << 16), chunk=1 << 16) for _ in range(200)), MalformedAnswerError),
    "a lost link": (line(DATA[:100], chunk=100), ConnectionLostError),
    "a refusal": (line(DATA[:100], chunk=100) + line(id=3, error={"code": "no-run", "message": "gone"}), AgentError),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_BYTES)
def test_what_arrives_is_what_was_announced_or_nothing(host, local_copy, tmp_path, what):
    """Nothing else gets into its place, no more is kept than was announced, and what was here before stays."""
    said, kind = WRONG_BYTES[what]
    again = [listed(GOOD).replace(b'"id": 1', b'"id": %d' % number) for number in (4, 7)]
    more = [digested(CONTENT).replace(b'"id": 2', b'"id": %d' % number) for number in (5, 8)]
    last = [said.replace(b'"id": 3', b'"id": %d' % number) for number in (6, 9)]
    tries = (
        b"".join(a + b + c for a, b, c in zip(again, more, last, strict=True)) if kind is RunError else b""
    )
    with pytest.raises(kind):
        pull(host(listed(GOOD), digested(CONTENT), said, tries), local_copy, Choice(LIMIT), Quiet())
    came = local_copy.artifacts / "a"  # the whole and verified file that the host sent before it went on
    assert not came.exists() or (came.read_bytes() == DATA and what.startswith("more"))
    assert (local_copy.artifacts / "before").read_text() == "before"
    assert all(path.stat().st_size <= len(DATA) for path in (local_copy.folder / ".parts").glob("*"))
    assert not list(tmp_path.glob("x*"))


def test_names_that_this_disk_takes_for_one_are_left_there_and_named(host, local_copy, monkeypatch):
    """On a disk that does not know capitals from small letters, one file does not replace another."""
    monkeypatch.setattr("launcher.runs.pull.pulling._folding_of", lambda _folder: str.casefold)
    twin = ["artifacts/A", "artifact", len(DATA), 1]
    pulled = pull(
        host(listed(GOOD, twin), digested(["artifacts/A", len(DATA), 1, SHA256]), SENT),
        local_copy,
        Choice(LIMIT),
        Quiet(),
    )
    assert pulled.left_out == {"artifacts/a": "this disk cannot distinguish its name from artifacts/A"}


def test_a_name_that_a_terminal_would_obey_is_not_made_here(host, local_copy):
    """Neither of a file nor in a checkpoint."""
    odd = ["artifacts/\x1b[2J", "artifact", len(DATA), 1]
    pulled = pull(host(listed(GOOD, odd), digested(CONTENT), SENT), local_copy, Choice(LIMIT), Quiet())
    assert pulled.left_out.keys() == {"artifacts/\x1b[2J"}
    manifest = json.dumps({"step": 1, "files": {"a\u202eb": {"size": 1, "sha256": SHA256}}}).encode()
    with pytest.raises(ValueError, match="control characters"):
        sealed_checkpoint("step-1", manifest, hashlib.sha256(manifest).hexdigest(), {})


def test_a_refusal_to_remove_is_data_too(host, local_copy):
    """A host that names other things than files of a run is not shown as if it had."""
    summary = line(id=1, ok={"runs": [{"run": RUN, "state": "succeeded"}]})
    read = line(id=2, ok={"state": {"state": "succeeded"}, "parts": []})
    empty = lines().replace(b'"size": 0', b'"size": 0') + line(id=3, ok={"left_out": {}, "now_ns": 5})
    refusal = line(
        id=4,
        error={
            "code": "last-copies",
            "message": "x",
            "values": {"files": [["../x", "artifact", 1]], "count": 1},
        },
    )
    with pytest.raises(HostError):
        cleaning.free(host(summary, read, empty, refusal), local_copy, "nothing", Quiet())
    assert not local_copy.is_freed
    assert list(LocalCopies(local_copy).files()) == [local_copy.artifacts / "before"]
