"""The steps of a move, with hosts that are played: in which order, and what of a host's word is believed."""

import contextlib
import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.copy import move_records
from launcher.copy.local_copy import LocalCopy
from launcher.errors import RunError, UnreachableError, UsageError
from launcher.runs.follow.view import NullStage
from launcher.runs.move import move_target, moving
from launcher.runs.pull.checkpoint_pulling import LocalCheckpoint
from launcher.values.reported.answers import MovedTo
from launcher.values.reported.checkpoint import sealed_checkpoint

RUN, CHILD = "261125-walk-aaaaaa", "261125-walk-bbbbbb"
CODE = b"print('hello')"


def digest(content):
    return hashlib.sha256(content).hexdigest()


class OldHost:
    """A host that sends this list of files, and these contents one after the other."""

    host = "A"

    def __init__(self, tree, content=CODE):
        self.runs = self
        self._tree, self._content = tree, content

    def tree(self, run):
        """Send the list."""
        return self._tree

    def contents(self, run, files, take):
        """Send the contents, whatever was asked for."""
        left = [self._content]
        take(SimpleNamespace(read=lambda _size: left.pop() if left else b""))


class NewHost:
    """A host that has nothing yet, and writes down what it is asked."""

    host = "B"

    def __init__(self):
        self.preparation = self
        self.asked = []

    def offer(self, run, manifest):
        """Ask for all files."""
        self.asked.append("offer")
        return sorted(entry["sha256"] for entry in manifest.values())

    def ship(self, run, files, write):
        """Take them."""
        self.asked.append("ship")
        return []

    def offer_checkpoint(self, run, parent, checkpoint):
        """Ask for none of its files."""
        self.asked.append("offer_checkpoint")
        return []

    def ship_checkpoint(self, run, files, write):
        """Take it."""
        self.asked.append("ship_checkpoint")


def fill(tmp_path, old, new):
    """Put what `old` sends in place on `new`; return the mirror."""
    local_copy = LocalCopy(RUN, tmp_path)
    local_copy.folder.mkdir(parents=True)
    manifest = b'{"step": 3, "files": {}}'
    home = LocalCheckpoint(
        sealed_checkpoint("step-3", manifest, digest(manifest), {}), Path("step-3"), [], 0, []
    )
    moving.fill_from_old(old, new, local_copy, home, LocalCopy(CHILD, tmp_path), NullStage())
    return local_copy


def test_the_code_comes_last(tmp_path):
    """If the new host dies between the two, the run there never began: with its code alone it would start at step 1."""
    new = NewHost()
    tree = {"code/train.py": {"sha256": digest(CODE), "size": len(CODE)}}
    local_copy = fill(tmp_path, OldHost(json.dumps(tree).encode()), new)
    assert new.asked == ["offer_checkpoint", "ship_checkpoint", "offer", "ship"]
    assert not (local_copy.folder / ".moving").exists()


@pytest.mark.parametrize(
    "told",
    [
        {"code/x": {"sha256": digest(CODE)}},
        {"code/x": {"sha256": digest(CODE), "size": "1"}},
        {"code/x": {"sha256": [], "size": 1}},
        {"code/x": {"sha256": "../../../stolen", "size": 1}},
        {"code/x": {"sha256": digest(CODE), "size": -1}},
        {"code/x": 1},
        [],
        "[" * 100_000,
    ],
)
def test_a_list_of_files_that_is_none_is_told_and_nothing_is_written(tmp_path, told):
    """Even if the new host plays along: a content's name is that of a file here."""
    new = NewHost()
    tree = told if isinstance(told, str) else json.dumps(told)
    with pytest.raises(RunError, match="A sent no list of the files"):
        fill(tmp_path / "runs", OldHost(tree.encode()), new)
    assert "offer" not in new.asked
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("content", [b"print('other')", CODE[:3], CODE + b"more"])
def test_contents_that_are_not_those_of_the_list_go_nowhere(tmp_path, content):
    """Also if they are too few, or too many."""
    new = NewHost()
    tree = {"code/train.py": {"sha256": digest(CODE), "size": len(content)}}
    with pytest.raises(RunError, match="no longer has a file of the run as it was sent"):
        fill(tmp_path, OldHost(json.dumps(tree).encode(), content), new)
    assert "ship" not in new.asked
    assert not (tmp_path / RUN / ".moving").exists()


@pytest.mark.parametrize(
    "second",
    [UnreachableError("B", "B: no answer"), SimpleNamespace(root_id="another", host="B", about="")],
    ids=["away", "another root"],
)
def test_a_child_that_may_be_at_its_host_is_never_given_up(monkeypatch, tmp_path, second):
    """If the host does not answer, or is not the one: a third host gets no child."""

    @contextlib.contextmanager
    def dial(_host):
        if isinstance(second, UnreachableError):
            raise second
        yield second

    view = SimpleNamespace(stage=lambda _name: contextlib.nullcontext(NullStage()))
    names = SimpleNamespace(host=lambda name: name, hosts={"B": "B"})
    monkeypatch.setattr(move_target, "Lookup", lambda: names)
    monkeypatch.setattr(move_target, "connected", lambda _view, connect: connect())
    monkeypatch.setattr(move_target, "connect", dial)
    moved = MovedTo(run=CHILD, host="B", root="root-b")
    with pytest.raises(UsageError, match=f"was moved to B as {CHILD}"):
        move_target.taken_up(
            SimpleNamespace(root_id="root-c"), LocalCopy(RUN, tmp_path), moved, None, None, view
        )


@pytest.mark.parametrize(
    ("run", "host", "error", "told"),
    [
        (CHILD, "me@thief.example:22", UsageError, "was moved to me@thief.example:22"),
        (CHILD, "B; rm -rf ~", UsageError, "--host 'B; rm -rf ~'"),
        ("../../elsewhere", "B", RunError, "which is not a run"),
    ],
)
def test_an_old_host_leads_this_client_to_no_machine_and_no_path(
    monkeypatch, tmp_path, run, host, error, told
):
    """Where its run goes on is its word alone: nobody is called by it."""
    monkeypatch.setattr(move_target, "connect", lambda host: pytest.fail(f"{host} was called"))
    view = SimpleNamespace(stage=lambda _name: contextlib.nullcontext(NullStage()))
    moved = MovedTo(run=run, host=host, root="root-b")
    with pytest.raises(error, match=re.escape(told)):
        move_target.taken_up(
            SimpleNamespace(root_id="root-c"), LocalCopy(RUN, tmp_path), moved, None, None, view
        )


def test_an_address_that_this_client_named_itself_is_called(monkeypatch, tmp_path):
    """By its own record of the move that broke off."""
    called = []

    def dial(host):
        called.append(host.address)
        raise UnreachableError("B", "B: no answer")

    monkeypatch.setattr(move_target, "connect", dial)
    view = SimpleNamespace(stage=lambda _name: contextlib.nullcontext(NullStage()))
    moved = MovedTo(run=CHILD, host="me@127.0.0.9:22", root="root-b")
    local_copy = LocalCopy(RUN, tmp_path)
    move_records.intend(local_copy, moved)
    with pytest.raises(UsageError, match="was moved to"):
        move_target.taken_up(SimpleNamespace(root_id="root-c"), local_copy, moved, None, None, view)
    assert called == ["127.0.0.9"]
