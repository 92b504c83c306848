"""What a client keeps of its departures and of its checkpoints, and what telling a host costs; with hosts that are played."""

import gzip
import hashlib
import json
import threading
from types import SimpleNamespace

import pytest
from testbed.entries import know

from launcher.base.whole_file import write_durably
from launcher.copy import index, move_records
from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, RunError
from launcher.runs import run_client
from launcher.runs.move import pending_stops
from launcher.runs.pull import checkpoints_here
from launcher.transport import connecting
from launcher.upload import upload_record
from launcher.values.host import Host
from launcher.values.record import Summary
from launcher.values.reported.answers import MovedTo

RUN, CHILD, OTHER = "261125-walk-aaaaaa", "261125-walk-bbbbbb", "261125-walk-cccccc"
THERE = MovedTo(run=CHILD, host="B", root="root-b")


@pytest.fixture
def local_copy(tmp_path, monkeypatch):
    """The mirror of a run that was launched in the root `root-a` of host A."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path))
    made = LocalCopy(RUN, tmp_path)
    made.folder.mkdir()
    know(RUN, tmp_path, host={"name": "A", "address": "a"}, root="root-a")
    return made


class OldHost:
    """A host with one run: what it is asked, in order. It can refuse to put the successor on record."""

    host = "A"

    def __init__(self, root="root-a", state="running", refuses=False, knows=THERE):
        self.root_id, self.state, self.refuses, self.knows = root, state, refuses, knows
        self.runs, self.asked = self, []

    def summaries(self, run):
        """Return the run's summary, if it has it."""
        self.asked.append("summaries")
        return [Summary(run=run, state=self.state)] if self.state else []

    def wish(self, run, wish, *, force=False):
        """End the run at once."""
        self.asked.append(wish)
        self.state = "stopped"

    def remaining(self, run):
        """Nothing is left."""
        return []

    def move(self, run, target, instead):
        """Return what is on record."""
        self.asked.append("move")
        if self.refuses:
            raise AgentError("A", "held", "its agent is still there")
        return self.knows


@pytest.fixture
def stops(monkeypatch):
    """Stopping a run is the wish alone; the runtimes have tests of their own."""

    def stopped(desk, run, **_):
        desk.runs.wish(run, "cancel")
        return SimpleNamespace(summary=SimpleNamespace(step=7))

    monkeypatch.setattr(pending_stops, "stop", stopped)
    monkeypatch.setattr(pending_stops, "said", [])


def deliver(desk):
    pending_stops.deliver(desk, move_records.pending())


def test_a_host_is_told_once_and_then_nothing_is_pending(local_copy, stops):
    """The wish first, the successor on record once the run is dead; a later contact asks nothing."""
    move_records.abandon(local_copy, THERE)
    assert move_records.pending() == [RUN]
    desk = OldHost()
    deliver(desk)
    assert desk.asked == ["summaries", "cancel", "cancel", "move"]
    recorded_move = move_records.recorded_move_of(local_copy)
    assert recorded_move.told <= recorded_move.settled
    assert move_records.pending() == []
    desk = OldHost()
    deliver(desk)
    assert desk.asked == []


@pytest.mark.parametrize("desk", [OldHost(root="root-b"), OldHost(root="")], ids=["another", "none"])
def test_a_host_with_another_root_is_told_nothing(local_copy, desk):
    """Whatever its name."""
    move_records.abandon(local_copy, THERE)
    deliver(desk)
    assert desk.asked == []
    assert move_records.recorded_move_of(local_copy).is_open


def test_a_host_that_still_has_something_of_the_run_is_asked_again(local_copy, stops):
    """It is told, but not settled; the next contact settles it without another wait."""
    move_records.abandon(local_copy, THERE)
    deliver(OldHost(refuses=True))
    recorded_move = move_records.recorded_move_of(local_copy)
    assert (recorded_move.told is not None, recorded_move.settled) == (True, None)
    desk = OldHost(state="stopped")
    deliver(desk)
    assert desk.asked == ["summaries", "move"]
    assert not move_records.recorded_move_of(local_copy).is_open


def test_a_host_that_has_another_successor_on_record_is_noted(local_copy, stops):
    """Another client has moved the run: two go on, and this client says so."""
    move_records.abandon(local_copy, THERE)
    deliver(OldHost(knows=MovedTo(run=OTHER, host="C", root="root-c")))
    assert move_records.recorded_move_of(local_copy).also == OTHER


def test_a_run_that_its_host_no_longer_has_is_settled(local_copy):
    """There is nothing to end."""
    move_records.abandon(local_copy, THERE)
    desk = OldHost(state=None)
    deliver(desk)
    assert desk.asked == ["summaries"]
    assert not move_records.recorded_move_of(local_copy).is_open


def test_a_pending_name_without_a_decision_means_nothing(local_copy):
    """The client died between the two, or the mirror was removed."""
    (index.folder() / ".abandoned").mkdir()
    (index.folder() / ".abandoned" / RUN).touch()
    desk = OldHost()
    deliver(desk)
    assert desk.asked == []
    assert move_records.pending() == []


def test_a_contact_while_a_run_is_being_abandoned_does_not_forget_it(local_copy, stops, monkeypatch):
    """Any command may look at what is pending before the decision is on record."""
    looking = threading.Thread(target=deliver, args=(OldHost(root="root-b"),))

    def write(path, content):
        looking.start()
        looking.join(0.3)
        write_durably(path, content)

    monkeypatch.setattr(move_records, "write_durably", write)
    move_records.abandon(local_copy, THERE)
    looking.join()
    assert move_records.pending() == [RUN]


def test_a_record_that_cannot_be_read_is_not_taken_for_none(local_copy, stops):
    """A second successor would begin, and the host would never hear of the first."""
    move_records.abandon(local_copy, THERE)
    (index.place(RUN) / "moved.json").write_bytes(b"")
    for change in (move_records.abandon, move_records.intend):
        with pytest.raises(RunError, match=r"moved\.json cannot be read"):
            change(local_copy, MovedTo(run=OTHER, host="C", root="root-c"))
    desk = OldHost()
    deliver(desk)
    assert (desk.asked, move_records.pending()) == ([], [RUN])


def test_without_anything_pending_a_contact_reads_nothing(local_copy, monkeypatch):
    """However many runs there are: no mirror is looked at, and the host is asked nothing."""
    desk = OldHost()
    monkeypatch.setattr(connecting, "connect", lambda _host: desk)
    monkeypatch.setattr(
        move_records, "recorded_move_of", lambda _local_copy: pytest.fail("a mirror was read")
    )
    assert run_client.connect(Host(name="A", address="a")) is desk
    assert desk.asked == []


def test_a_decision_stands(local_copy):
    """The second one, for another id or another host, returns the first, until that is given up. An intention is none."""
    move_records.intend(local_copy, MovedTo(run=OTHER, host="C", root="root-c"))
    assert move_records.recorded_move_of(local_copy) is None
    first = move_records.abandon(local_copy, THERE)
    assert first.run == CHILD
    assert move_records.abandon(local_copy, THERE.model_copy(update={"run": OTHER})) == first
    assert move_records.abandon(local_copy, MovedTo(run=OTHER, host="C", root="root-c")) == first
    given_up = move_records.abandon(local_copy, MovedTo(run=OTHER, host="C", root="root-c"), CHILD)
    assert (given_up.run, given_up.given_up, given_up.is_open) == (OTHER, (CHILD,), True)
    (index.place(RUN) / "moved.json").write_text("torn")
    with pytest.raises(RunError):
        move_records.note(local_copy, told=1.0)


# checkpoints that are here


def checkpoint(local_copy, step, folder=1, weights=b"w"):
    """A whole checkpoint as it came from the host."""
    name = f"step-{step}"
    manifest = json.dumps(
        {
            "step": step,
            "folder": folder,
            "files": {"weights": {"size": 1, "sha256": hashlib.sha256(b"w").hexdigest()}},
        }
    ).encode()
    place = local_copy.checkpoints / name
    place.mkdir(parents=True)
    (place / "weights").write_bytes(weights)
    (place / "manifest.json").write_bytes(manifest)
    line = [f"checkpoints/{name}/manifest.json", len(manifest), 1, hashlib.sha256(manifest).hexdigest()]
    with (index.place(RUN) / "pulled.jsonl").open("a") as file:
        print(json.dumps(line), file=file)


def fetched(local_copy, number, **state):
    """What a numbered folder has said of its end."""
    folder = local_copy.folder / f"{number:04d}"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"state": "running", **state}))


def test_the_newest_whole_checkpoint_counts(local_copy):
    """A damaged one is passed over, and said."""
    checkpoint(local_copy, 9)
    checkpoint(local_copy, 10)
    checkpoint(local_copy, 11, weights=b"x")
    here = checkpoints_here.newest_whole(local_copy)
    assert here.newest.checkpoint.step == 10
    assert [one.checkpoint for one in here.passed_over] == ["step-11"]


@pytest.mark.parametrize(("sealer", "step"), [(1, 3), (2, 5)], ids=["before", "by the next attempt"])
def test_a_checkpoint_from_after_a_bad_step_does_not_count(local_copy, sealer, step):
    """Attempt 1 failed with bad steps from 5 on. What the next attempt has sealed is sound."""
    fetched(local_copy, 1, failure={"class": "nan-divergence", "since": 5})
    checkpoint(local_copy, 3)
    checkpoint(local_copy, 5, folder=sealer)
    assert checkpoints_here.newest_whole(local_copy).newest.checkpoint.step == step


@pytest.mark.parametrize(
    ("consumed", "expected"),
    [
        (["resume"], True),
        ([], False),
        (["resume", "held resume"], False),
        ("resume", False),
        ([["x"]], False),
    ],
)
def test_whether_a_script_resumes_is_what_was_fetched(local_copy, consumed, expected):
    """And nothing that a host may say besides."""
    fetched(local_copy, 1, consumed=consumed)
    assert checkpoints_here.resumes(local_copy) is expected


# what was sent


def test_what_was_sent_is_found_by_its_content_alone(local_copy, tmp_path):
    """A file of the same size with other contents is not it, nor one that is gone."""
    files = {"a.py": b"one", "b.py": b"two", "c.py": b"six"}
    manifest, sources = {}, {}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        manifest[f"code/{name}"] = {"sha256": sha256, "size": 3, "mode": 0o644}
        sources[sha256] = str(tmp_path / name)
    upload_record.write(local_copy, upload_record.UploadRecord(manifest, sources))
    record = upload_record.read(local_copy)
    assert record == upload_record.UploadRecord(manifest, sources)
    (tmp_path / "b.py").write_bytes(b"Two")
    (tmp_path / "c.py").unlink()
    found = upload_record.find(record, list(sources))
    assert [file.source for file in found.files.values()] == [str(tmp_path / "a.py")]
    assert found.changed == ["b.py", "c.py"]


@pytest.mark.parametrize(
    "content",
    [b"", b"torn", gzip.compress(b"[{}, {}]")[:-6], gzip.compress(b"[1, 2]")],
    ids=[
        "nothing",
        "no gzip",
        "cut short",
        "another shape",
    ],  # gzip writes the time: no two processes agree on it
)
def test_a_record_that_is_torn_is_none(local_copy, content):
    """As if nothing was on record."""
    (index.place(RUN) / upload_record.NAME).write_bytes(content)
    assert upload_record.read(local_copy) is None
