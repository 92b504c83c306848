"""The queue of a batch on disk: what is taken, what is refused, and what a damaged or full disk says."""

import contextlib
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
from testbed.entries import know

from launcher.batch import batch_queue
from launcher.batch.batch_queue import NewItem, make_queue, open_queue, take_work, worker_of
from launcher.batch.input.batch_definition import Rules
from launcher.batch.queued_item import FOLLOWING, ItemState
from launcher.errors import BadFileError, RunError, UnknownNameError, UsageError

Q, R, C, E = ItemState


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project's folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCH_RUNS", raising=False)
    return tmp_path


@pytest.fixture
def queue(folder):
    """A queue of three items."""
    with make_queue("sweep", Rules(), [NewItem(f"i{n}", "{}", ("A",), {"n": n}) for n in (1, 2, 3)]) as made:
        yield made


def test_items_come_back_as_they_were_put_in(queue):
    """In their order, with their points of the matrix."""
    assert [(item.name, item.hosts, item.values, item.state) for item in queue.items()] == [
        (f"i{n}", ("A",), {"n": n}, Q) for n in (1, 2, 3)
    ]


def test_each_transition_is_on_disk_for_another_process(queue):
    """Read by the sqlite3 program's own library, through a connection of its own."""
    first = queue.items()[0]
    queue.step(first, R, run="261125-i1-abcdef", host="A")
    with sqlite3.connect(queue.folder / "queue.sqlite") as other:
        row = other.execute("SELECT state, run, host FROM item WHERE name = 'i1'").fetchone()
    assert row == ("reserved", "261125-i1-abcdef", "A")


@pytest.mark.parametrize("before", ItemState)
@pytest.mark.parametrize("after", ItemState)
def test_only_states_that_follow_are_taken(queue, before, after):
    """Whatever a caller does."""
    item = queue.items()[0]
    for state in {Q: (), R: (R,), C: (R, C), E: (E,)}[before]:
        item = queue.step(item, state)
    if after in FOLLOWING[before]:
        assert queue.step(item, after).state == after
    else:
        with pytest.raises(ValueError, match="does not follow"):
            queue.step(item, after)


def test_what_an_older_version_calls_submitted_is_reserved(queue):
    """Its launch may have begun, and is looked for."""
    with sqlite3.connect(queue.folder / "queue.sqlite") as other:
        other.execute(
            "UPDATE item SET state = 'submitted', run = '261125-i1-abcdef', host = 'A' WHERE number = 1"
        )
    (item,) = queue.items(R)
    assert (item.state, queue.count(R), queue.count(Q)) == (R, 1, 2)
    assert queue.step(item, C).run == "261125-i1-abcdef"


def test_a_transition_that_another_process_has_made_is_refused(queue):
    """The one that comes second learns it."""
    item = queue.items()[0]
    with open_queue("sweep") as other:
        other.step(other.items()[0], R, run="261125-i1-abcdef", host="A")
    with pytest.raises(RunError, match="another process has changed it"):
        queue.step(item, R, run="261125-i1-ghijkl", host="A")


def test_one_process_works_a_batch(queue):
    """Another one learns which, and may once it has ended."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def hold():
        work = take_work(queue)
        there.send(work is not None)
        there.recv()
        os._exit(9)

    process = context.Process(target=hold, daemon=True)  # if the test fails it ends all the same
    process.start()
    assert here.recv()
    assert take_work(queue) is None
    assert worker_of(queue).pid == process.pid
    here.send("die")
    process.join()
    assert worker_of(queue) is None
    work = take_work(queue)
    assert work is not None
    work.release()


def test_a_name_is_taken_once(queue):
    """The first batch is left as it is."""
    with pytest.raises(UsageError, match="launch batch status sweep"):
        make_queue("sweep", Rules(), [])
    assert len(queue.items()) == 3


def test_an_unknown_batch_is_named_with_the_nearest(queue):
    """And with those that are known."""
    with pytest.raises(UnknownNameError, match="did you mean 'sweep'"):
        open_queue("sweap")


@pytest.mark.parametrize("keep", [0, 100, 4096, 9000])
def test_a_file_that_is_cut_off_is_said_to_be_damaged(queue, keep):
    """With the command that goes on once it is mended; nothing is begun by it."""
    queue.close()
    path = queue.folder / "queue.sqlite"
    path.write_bytes(path.read_bytes()[:keep])
    for log in queue.folder.glob("queue.sqlite-*"):
        log.unlink()
    with pytest.raises(RunError, match=r"queue\.sqlite"), open_queue("sweep") as again:
        again.items()


def reserve_all(queue):
    """Make a long transition of each item."""
    for item in queue.items():
        queue.step(item, R, run="261125-i1-abcdef", host="A", why="y" * 5000)


def test_a_full_disk_is_named_and_leaves_the_last_transition(small_disk, folder, monkeypatch):
    """What was not written did not happen."""
    monkeypatch.setenv("LAUNCH_RUNS", str(small_disk / "runs"))
    with make_queue("sweep", Rules(), [NewItem(f"i{n}", "x" * 500, ("A",), {}) for n in range(200)]) as made:
        subprocess.run(["dd", "if=/dev/zero", f"of={small_disk / 'fill'}"], capture_output=True, check=False)
        with pytest.raises(RunError, match="launch batch resume sweep"):
            reserve_all(made)
        (small_disk / "fill").unlink()
        states = [item.state for item in made.items()]
        assert states.index(Q) == states.count(R)


def test_where_a_disk_is_full_no_batch_is_made(small_disk, folder, monkeypatch):
    """Nor is half of one left."""
    monkeypatch.setenv("LAUNCH_RUNS", str(small_disk / "runs"))
    with pytest.raises(RunError, match="nothing was begun"):
        make_queue("sweep", Rules(), [NewItem(f"i{n}", "x" * 5000, ("A",), {}) for n in range(2000)])
    assert not [*(small_disk / "runs" / "batches").glob("*sweep*")]


def test_locks_that_do_not_hold_are_refused(folder, monkeypatch):
    """As on a file system that takes every lock."""
    monkeypatch.setattr(batch_queue, "_TRY", "raise SystemExit(1)")
    with pytest.raises(RunError, match="does not enforce them"):
        make_queue("sweep", Rules(), [])
    assert not [*Path("runs/batches").glob("*")]


def test_two_thousand_items_are_small_and_quickly_counted(folder):
    """The file stays under 10 MB."""
    with make_queue(
        "sweep", Rules(), [NewItem(f"i{n}", "x" * 1500, ("A", "B"), {"n": n}) for n in range(2000)]
    ) as made:
        size = int(
            subprocess.run(
                ["du", "-sk", made.folder], capture_output=True, text=True, check=True
            ).stdout.split()[0]
        )
        assert size < 10_000
        assert made.count(Q) == 2000


def launched(queue, cut):
    """Have another process launch an item, die, and its log be cut off; return how long the log was."""
    queue.close()
    process = multiprocessing.get_context("fork").Process(target=_launch, args=(queue.folder.name,))
    process.start()
    process.join()
    log = queue.folder / "queue.sqlite-wal"
    data = log.read_bytes()
    log.write_bytes(data[: int(len(data) * cut)])
    (queue.folder / "queue.sqlite-shm").unlink()
    return len(data)


def _launch(name):
    queue = open_queue(name)
    item = queue.step(queue.items()[1], R, run="261125-i2-abcdef", host="A")
    begun("261125-i2-abcdef", item.name, queue.folder.parent.parent)
    queue.step(item, C)
    os._exit(9)


def begun(run, item, runs, batch="sweep", **values):
    """Put a run of a batch into the index, and its plan into its folder, as a launch does before it begins."""
    know(run, runs, **{"batch": batch, "host": {"name": "A"}, "launched": time.time(), **values})
    (runs / run).mkdir()
    (runs / run / "plan.json").write_text(json.dumps({"job": item}))


@pytest.mark.parametrize("cut", [step / 20 for step in range(21)])
def test_a_log_that_was_cut_off_anywhere_has_lost_no_launch(queue, cut):
    """SQLite takes what is left of it without a sign. What was launched is known by its id, and so looked for."""
    assert launched(queue, cut) > 10_000
    with open_queue("sweep") as again:
        known = again.runs()
        work = take_work(again)
        item = again.items()[1]
        assert (item.run, item.host) == ("261125-i2-abcdef", "A")
        assert item.state in (R, C)
        assert work.mended == ([] if "261125-i2-abcdef" in known else ["i2"])
        assert [one.state for one in again.items() if one.number != 2] == [Q, Q]
        work.release()
        assert take_work(again).mended == []


def test_only_a_launch_of_this_batch_is_put_back(queue):
    """None of another batch, none of an earlier one of the same name, and none on a host that its item was not begun with."""
    runs = queue.folder.parent.parent
    for run, values in (
        ("261125-i1-aaaaaa", {"batch": "other"}),
        ("261125-i1-bbbbbb", {"launched": time.time() - 1000}),
        ("261125-i1-cccccc", {"host": {"name": "B"}}),
    ):
        begun(run, "i1", runs, **values)
    begun("261125-x-dddddd", "x", runs)
    assert queue.mend() == []
    begun("261125-i1-eeeeee", "i1", runs)
    assert queue.mend() == ["i1"]
    assert (queue.item(1).state, queue.item(1).run) == (R, "261125-i1-eeeeee")


def test_a_batch_that_was_not_made_whole_is_none(queue):
    """As one whose command was killed: it is neither the latest nor left alone."""
    shutil.copytree(queue.folder, queue.folder.with_name(".other.77.part"))
    assert batch_queue.names() == ["sweep"]
    assert batch_queue.unworked_batches(print) == {"sweep": 3}


def test_the_latest_batch_is_the_one_that_was_made_last(queue):
    """Whichever was changed since."""
    with make_queue("later", Rules(), [NewItem("i1", "{}", ("A",), {})]):
        pass
    queue.step(queue.items()[0], R, run="261125-i1-abcdef", host="A")
    queue.close()
    with open_queue(None) as latest:
        assert latest.name == "later"


def test_a_folder_of_runs_that_a_batch_makes_is_not_committed(queue):
    """As one that a launch makes."""
    assert (queue.folder.parents[1] / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_batch_that_may_not_be_written_can_be_looked_at(client, small_disk, queue, is_closed):
    """A snapshot, or a colleague's folder, also where SQLite has not yet put all into its file, or has closed it."""
    queue.step(queue.items()[0], R, run="261125-i1-abcdef", host="A")
    if is_closed:
        queue.close()
    shutil.copytree(queue.folder, small_disk / "batches" / "sweep")
    assert (small_disk / "batches" / "sweep" / "queue.sqlite-wal").exists() == (not is_closed)
    client.runs.symlink_to(small_disk)
    client.variables["LAUNCH_RUNS"] = str(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = client.run("batch", "status", "sweep")
    assert done.returncode == 0, done.stderr
    assert "sweep: 3 items: 1 launching, 2 queued" in done.stdout
    assert "sweep" in client.ok("batch", "list")
    assert "2 items are queued" in client.run("ps").stderr


@pytest.mark.parametrize(
    "name", ["queue.sqlite", "queue.sqlite-wal", "queue.sqlite-shm", "queue.sqlite-journal"]
)
@pytest.mark.parametrize("kind", ["link", "pipe", "hard link"])
def test_a_queue_that_is_not_a_regular_file_is_not_opened(queue, tmp_path, name, kind):
    """As a cloned repository may bring one: no file elsewhere is opened or changed, and nothing waits."""
    queue.close()
    victim = tmp_path / "victim"
    shutil.copy(queue.folder / "queue.sqlite", victim)
    before = victim.read_bytes()
    path = queue.folder / name
    path.unlink(missing_ok=True)
    {"link": path.symlink_to, "pipe": lambda _: os.mkfifo(path), "hard link": path.hardlink_to}[kind](victim)
    with pytest.raises(BadFileError, match=f"'{name}' (is|has)"):
        batch_queue.BatchQueue("sweep", queue.folder)
    if name == "queue.sqlite" and kind != "hard link":
        assert batch_queue.names() == []
    assert victim.read_bytes() == before


@pytest.mark.parametrize("which", ["batches", "batches/sweep"])
def test_a_folder_of_batches_that_is_a_link_holds_none(queue, tmp_path, which):
    """Nor is one made below it."""
    queue.close()
    folder = queue.folder.parent.parent / which
    moved = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(moved)
    assert batch_queue.names() == []
    assert batch_queue.unworked_batches(print) == {}
    before = sorted(moved.rglob("*"))
    with pytest.raises((RunError, UsageError)):
        make_queue("sweep", Rules(), [NewItem("i1", "{}", ("A",), {"n": 1})])
    assert sorted(moved.rglob("*")) == before


@pytest.mark.parametrize("name", ["worker.json", ".worker.lock", ".open"])
def test_a_batch_writes_through_no_link(queue, tmp_path, name):
    """What cannot be replaced is refused."""
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    path = queue.folder / name
    path.unlink(missing_ok=True)
    path.symlink_to(victim)
    with contextlib.suppress(RunError):
        work = take_work(queue)
        queue.step(queue.items()[0], R, run="261125-i1-abcdef", host="A")
        queue.mark()
        work.release()
    assert victim.read_text() == "mine\n"
