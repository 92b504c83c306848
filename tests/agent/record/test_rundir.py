"""The run directory's files: locks among lookers, and what a full disk does to them."""

import fcntl
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest
from testbed.client import is_gone, until

from launcher.agent.liveness.native.native_liveness import end_keeper
from launcher.agent.record import appender
from launcher.agent.record.appender import Appender
from launcher.agent.record.files import remove_tree, write_durably
from launcher.agent.record.locks import Lock, is_locked
from launcher.agent.record.rundir import Run
from launcher.agent.serving.client_connection import ClientConnection
from launcher.agent.training.supervise import Supervisor

MIB = 1024 * 1024


def test_a_lock_is_taken_in_spite_of_those_who_look(tmp_path):
    """Who looks holds a shared lock for an instant; the writer waits for that instant."""
    path = str(tmp_path / "lock")
    looker = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looker, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, [looker]).start()
    lock = Lock.take(path)
    assert lock is not None
    assert is_locked(path)
    lock.release()
    assert not is_locked(path)


def test_a_lock_that_another_holds_is_not_taken(tmp_path):
    """One writer."""
    path = str(tmp_path / "lock")
    assert Lock.take(path) is not None
    assert Lock.take(path) is None


@pytest.mark.testbed
def test_what_does_not_fit_on_a_full_disk_arrives_when_there_is_room(small_disk):
    """Nothing is lost and nothing is torn."""
    filler = small_disk / "filler"
    file = Appender(str(small_disk / "log.txt"))
    file.append(b"first\n")
    fill(filler)
    lines = [b"line %d %s\n" % (number, b"x" * 1000) for number in range(100)]
    for line in lines:
        file.append(line)
    assert file.flush() is False
    filler.unlink()
    assert file.flush() is True
    assert (small_disk / "log.txt").read_bytes() == b"first\n" + b"".join(lines)


@pytest.mark.testbed
def test_what_exceeds_the_memory_for_it_is_dropped_aloud(small_disk, monkeypatch):
    """A disk that stays full does not take the host's memory too."""
    monkeypatch.setattr(appender, "MAX_PENDING", 3000)
    filler = small_disk / "filler"
    file = Appender(str(small_disk / "log.txt"))
    file.append(b"x")  # so that the file has its first page
    fill(filler)
    file.append(b"kept\n" * 2000)
    for _ in range(10):
        file.append(b"dropped\n" * 200)
    filler.unlink()
    file.flush()
    text = (small_disk / "log.txt").read_text()
    assert "dropped here: the disk was full" in text


@pytest.mark.testbed
def test_a_record_that_does_not_fit_leaves_the_old_one_and_no_part(small_disk):
    """Readers see the old text or the new one."""
    path = small_disk / "state.json"
    write_durably(str(path), "old")
    fill(small_disk / "filler")
    with pytest.raises(OSError, match="No space left"):
        write_durably(str(path), "x" * MIB)
    assert path.read_text() == "old"
    assert not list(small_disk.glob("*.tmp"))


def fill(path):
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.parametrize(("began", "number"), [(True, 2), (None, 1)])
def test_an_attempt_that_never_started_its_command_is_not_counted(tmp_path, began, number):
    """An agent that died before the command began has used up nothing of the job's attempts."""
    run = Run(str(tmp_path / "0101-x-aaaa"))
    run.make()
    write_durably(run.plan, json.dumps({"attempts": 1}))
    for kind in ("prepare", "attempt"):
        folder = run.new_folder()
        write_durably(folder.attempt, json.dumps({"kind": kind}))
        folder.write_state("running", began=began if kind == "attempt" else None)
        folder.release()
    assert Supervisor(run, run.last(), None).account.attempt == number


def test_a_client_that_reads_no_more_is_given_up(monkeypatch):
    """An agent whose client is frozen leaves after its silence, though it was in the middle of a word."""
    monkeypatch.setattr("launcher.agent.serving.client_connection.SILENCE_S", 0.2)
    reader, writer = os.pipe()
    try:
        with pytest.raises(BrokenPipeError):
            ClientConnection(reader, writer).write({"ok": {}}, b"x" * MIB)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_keeper_whose_agent_does_not_come_up_is_ended_with_all_below_it(tmp_path):
    """The run's folder is about to be removed: nothing may go on in it."""
    pid_file = tmp_path / "pid"
    keeper = subprocess.Popen(
        ["sh", "-c", f"trap '' TERM; (trap '' TERM; sleep 1000) & echo $! > {pid_file}; wait"]
    )
    until(lambda: pid_file.exists() and pid_file.read_text(), "the child's pid")
    child = int(pid_file.read_text())
    keeper.returncode = 0  # collected by the one under test
    end_keeper(keeper.pid)
    assert not Path(f"/proc/{keeper.pid}").exists()
    assert is_gone(child)


def test_the_locks_of_a_run_count_where_its_record_says(tmp_path):
    """On the machine that made it; on every machine of its root only if the record says so."""
    from testbed.toy import recorded_run

    here = recorded_run(tmp_path, "0101-here-aaaa", place_id="a")
    shared = recorded_run(tmp_path, "0101-both-aaaa", place_id="a", locks="shared")
    older = recorded_run(tmp_path, "0101-older-aaaa", place_id=None, host_id="a")
    assert [run.has_locks_here("a") for run in (here, shared, older)] == [True, True, True]
    assert [run.has_locks_here("b") for run in (here, shared, older)] == [False, True, False]


def test_what_the_job_may_write_lies_apart_from_the_record_and_from_what_controls_the_run(tmp_path):
    """Three folders; a run recorded in one folder is read as it is."""
    run = Run(str(tmp_path / "runs" / "261122-x-aaaaaa"))
    run.make()
    assert sorted(os.listdir(run.path)) == ["control", "record", "work"]
    decides = (run.plan, run.wish, run.token, run.prepared_record, run.manifest, run.digests)
    assert {os.path.dirname(path) for path in decides} == {run.control}
    assert os.path.dirname(run.secrets) == run.record  # the agent in a container erases them
    assert {os.path.dirname(path) for path in (run.code, run.data, run.artifacts, run.home)} == {run.work}
    assert os.path.dirname(run.new_folder().path) == run.record
    flat = tmp_path / "runs" / "1121-x-aaaa"
    flat.mkdir()
    (flat / "plan.json").write_text("{}")
    older = Run(str(flat))
    assert {older.control, older.record, older.work} == {older.path}


def test_what_a_job_leaves_at_the_top_of_its_run_does_not_make_it_an_older_one(tmp_path):
    """The run would lose sight of its own record while it trains."""
    run = Run(str(tmp_path / "runs" / "261122-x-aaaaaa"))
    run.make()
    Path(run.path, "plan.json").write_text("{}")
    Path(run.path, "0001").mkdir()
    assert Run(run.path).record == run.record


def test_a_link_among_the_nodes_is_not_a_node(tmp_path):
    """What a host's folder holds is data: nothing outside the run is read through it."""
    run = Run(str(tmp_path / "runs" / "261122-x-aaaaaa"))
    run.make()
    folder = run.new_folder()
    Path(folder.path, "node-1").mkdir()
    Path(folder.path, "node-2").symlink_to("/etc")
    Path(folder.path, "node-3").symlink_to("node-3")
    assert [os.path.basename(node.path) for node in folder.nodes()] == ["node-1"]
    folder.release()


def test_a_run_that_is_not_recorded_yet_is_not_interrupted(tmp_path):
    """Its maker may be at work, or has died: nobody can say which from here."""
    from launcher.agent.liveness.run_state import state_of

    run = Run(str(tmp_path / "runs" / "261122-x-aaaaaa"))
    run.make()
    run.new_folder().release()
    assert state_of(run)["state"] == "preparing"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 9, 100])
def test_the_last_folder_is_found_among_any_number_of_other_names(tmp_path, monkeypatch, count):
    """A job may put millions of them beside it: they are not listed."""
    run = Run(str(tmp_path / "runs" / "261122-x-aaaaaa"))
    run.make()
    for number in range(1, count + 1):
        os.mkdir(run.folder(number).path)
    for name in ("x", "1", "00001", "99999", "999999999"):
        os.mkdir(os.path.join(run.record, name))

    def refuse(*_):
        raise AssertionError

    for function in ("listdir", "scandir"):
        monkeypatch.setattr(os, function, refuse)
    assert run.numbers() == list(range(1, count + 1))


def test_a_folder_whose_files_a_network_disk_keeps_is_left_for_the_next_time(tmp_path):
    """What NFS and FUSE leave of an open file is no error; anything else that stays is."""
    for name, inner in (("nfs", "control/.nfs0001"), ("fuse", ".fuse_hidden0001")):
        top = tmp_path / name
        (top / "control" / "deep").mkdir(parents=True)
        (top / "control" / "deep" / "file").write_text("1234")
        kept = top / inner
        unlink, left = os.unlink, []

        def keeping(path, *more, name=kept.name, unlink=unlink, left=left, **options):
            if os.path.basename(path) == name:
                left.append(path)
            else:
                unlink(path, *more, **options)

        kept.write_text("open")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "unlink", keeping)
            assert remove_tree(str(top)) == 8
        assert left
        assert top.exists()
        remove_tree(str(top))
        assert not top.exists()
