"""What a run may take over: a run that has ended, a checkpoint that is whole; and how it does."""

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from testbed.client import is_gone, orphan, until

from launcher.agent.record.locks import Lock
from launcher.agent.record.rundir import Run
from launcher.agent.serving import serve
from launcher.agent.serving.session import ClientSession
from launcher.agent.store import checkpoints, inheritance
from launcher.agent.store.inheritance import ParentError, check_ended, inherit, take_over, what_is_wrong
from launcher.agent.store.store import Store
from launcher.agent.system.process import find, host_id

FILES = {"model": b"weights" * 99, "deep/er/state": b"s", "empty": b""}


def sealed(folder, step, files=FILES):
    """A checkpoint as the worker seals it."""
    made = folder / f"step-{step}"
    manifest = {}
    for name, data in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(data)
        manifest[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (made / "manifest.json").write_text(json.dumps({"version": 1, "step": step, "files": manifest}))
    return made


def run_at(root, name, *states, runtime=None):
    """A run with a first folder and one for each of some states, which nobody holds."""
    run = Run(str(root / "runs" / name))
    run.make()
    os.makedirs(run.checkpoints)
    for state in ({"state": "preparing"}, *states):
        folder = run.new_folder()
        with open(folder.attempt, "w") as file:
            kind = "prepare" if folder.number == 1 else "attempt"
            json.dump({"place_id": host_id(), "kind": kind, "runtime": runtime}, file)
        with open(folder.state, "w") as file:
            json.dump(state, file)
        folder.release()
    return run


ENDED = {"state": "failed", "began": True, "consumed": ["resume"]}


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "a/../../b", "./model", ".."])
def test_a_manifest_names_nothing_outside_its_checkpoint(tmp_path, name):
    """It was written on the host, and may be anybody's by now."""
    made = sealed(tmp_path, 5)
    assert what_is_wrong(str(made)) is None
    manifest = json.loads((made / "manifest.json").read_text())
    manifest["files"][name] = {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    (made / "manifest.json").write_text(json.dumps(manifest))
    assert what_is_wrong(str(made)) == f"its manifest names {name}"


@pytest.mark.parametrize("files", [None, [], {"model": None}, {"model": {"size": 693}}])
def test_a_manifest_of_another_shape_proves_nothing(tmp_path, files):
    """Whatever it is."""
    made = sealed(tmp_path, 5)
    (made / "manifest.json").write_text(json.dumps({"step": 5, "files": files}))
    assert what_is_wrong(str(made))


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_a_defect(tmp_path, name):
    """It ended the agent with a traceback, and so the run of a job that wrote it."""
    made = sealed(tmp_path, 5)
    (made / "manifest.json").write_text(json.dumps({"step": 5, "files": {name: {"size": 0}}}))
    assert what_is_wrong(str(made)) == "its manifest has a name that no file can have"


@pytest.mark.parametrize("link", ["checkpoints", "step-5", "step-5/model"])
@pytest.mark.parametrize("kind", ["docker", "native"])
def test_a_job_of_a_container_hands_on_no_other_runs_checkpoint(tmp_path, kind, link):
    """A link leads further on the host than inside. Natively a job may read all that its user may."""
    parent = run_at(tmp_path, "0101-a-aaaa", ENDED, runtime={"kind": kind})
    other = run_at(tmp_path, "0101-b-bbbb", ENDED)
    theirs = sealed(Path(other.checkpoints), 5)
    own = Path(parent.checkpoints)
    if link == "checkpoints":
        own.rmdir()
        own.symlink_to(other.checkpoints)
    elif link == "step-5":
        (own / "step-5").symlink_to(theirs)
    else:
        (sealed(own, 5) / "model").unlink()
        (own / "step-5" / "model").symlink_to(theirs / "model")
    steps = checkpoints.sealed(parent.checkpoints)
    assert [step for step, _ in steps] == [5]
    if kind == "native":
        assert inheritance._newest_whole(parent, steps)[0] == 5
        return
    with pytest.raises(ParentError, match="lies outside of the run"):
        inheritance._newest_whole(parent, steps)


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("has_links", [True, False])
def test_a_checkpoint_is_linked_and_copied_where_that_cannot_be(tmp_path, monkeypatch, has_links):
    """The same bytes under the same names; a link in it becomes what it led to."""
    made = sealed(tmp_path / "a", 5)
    (tmp_path / "blob").write_bytes(FILES["model"])
    (made / "model").unlink()
    (made / "model").symlink_to(tmp_path / "blob")
    if not has_links:
        monkeypatch.setattr(
            os, "link", lambda *_, **_more: (_ for _ in ()).throw(OSError(18, "cross-device"))
        )
    target = tmp_path / "b" / "step-5"
    take_over(str(made), str(target), links=True)
    assert tree(target) == tree(made)
    assert not (target / "model").is_symlink()
    one = "deep/er/state"
    assert (os.stat(target / one).st_ino == os.stat(made / one).st_ino) is has_links
    assert os.stat(target / "manifest.json").st_ino != os.stat(made / "manifest.json").st_ino
    assert [path.name for path in target.parent.iterdir()] == ["step-5"]


def test_a_file_that_a_link_leads_to_gets_no_second_name(tmp_path):
    """It could be a key of the user, put there once the checkpoint had been looked at: only contents that match are copied."""
    made = sealed(tmp_path / "a", 5)
    key = tmp_path / "id_secret"
    key.write_text("key")
    (made / "model").unlink()
    (made / "model").symlink_to(key)
    with pytest.raises(ParentError, match="changed"):
        take_over(str(made), str(tmp_path / "b" / "step-5"), links=True)
    assert key.stat().st_nlink == 1
    assert not (tmp_path / "b" / "step-5").exists()


@pytest.mark.parametrize("state", ["running", "preparing", "interrupted", "waiting"])
def test_a_run_that_has_not_ended_is_no_parent(tmp_path, state):
    """Whatever its last word was: nobody holds it, and one that waits for a card will go on."""
    run = run_at(tmp_path, "0101-a-aaaa", {"state": state})
    told = "waiting" if state == "waiting" else "interrupted"
    with pytest.raises(ParentError, match=f"is {told}"):
        check_ended(run)


def test_a_run_that_is_held_is_no_parent(tmp_path, monkeypatch):
    """Its agent has told the end, and still holds the run."""
    monkeypatch.setattr(inheritance, "LET_GO_S", 0.1)
    run = run_at(tmp_path, "0101-a-aaaa", ENDED)
    check_ended(run)
    lock = Lock.take(run.keeper_lock)
    with pytest.raises(ParentError, match="its agent is still there"):
        check_ended(run)
    lock.release()
    check_ended(run)


def test_a_run_that_could_not_be_ended_is_a_parent_once_nothing_is_left(tmp_path):
    """By its token, and by what its record names as still there."""
    left = subprocess.Popen(["sleep", "600"])
    bearer = orphan(["sleep", "600"], {**os.environ, "LAUNCH_TOKEN": "t0ken"}, tmp_path / "output")
    told = {"pid": left.pid, "start": find(left.pid).start}
    state = {**ENDED, "state": "stop-incomplete", "evidence": {"remaining": [told]}}
    run = run_at(tmp_path, "0101-a-aaaa", state)
    with open(run.token, "w") as file:
        file.write("t0ken")
    pids = sorted((left.pid, bearer))
    with pytest.raises(ParentError, match=f"pid {pids[0]}, {pids[1]} is still there"):
        check_ended(run)
    os.kill(bearer, signal.SIGKILL)
    until(lambda: is_gone(bearer), "its end")
    with pytest.raises(ParentError, match=f"pid {left.pid} is still there"):
        check_ended(run)
    left.kill()
    left.wait()
    check_ended(run)


def test_a_silent_engine_leaves_a_run_in_doubt(tmp_path):
    """Its container may yet be there."""
    state = {**ENDED, "state": "stop-incomplete"}
    runtime = {"kind": "docker", "engine": {"name": "docker", "socket": str(tmp_path / "none.sock")}}
    with pytest.raises(ParentError, match="its engine does not answer"):
        check_ended(run_at(tmp_path, "0101-a-aaaa", state, runtime=runtime))


def given(tmp_path, *states, steps=100, asked=()):
    """A parent with three checkpoints and these states, a child that is being prepared, and how to inherit."""
    parent, child = run_at(tmp_path, "0101-a-aaaa", *states), Run(str(tmp_path / "runs" / "0101-b-bbbb"))
    folder = tmp_path / "runs" / "0101-a-aaaa" / "work" / "checkpoints"
    for step in (5, 10, 15):
        sealed(folder, step)
    os.mkdir(parent.code)
    with open(parent.manifest, "w") as file:
        json.dump({}, file)
    child.make()
    prepared = child.new_folder()
    for path, values in ((child.plan, {"steps": steps}), (prepared.attempt, {"kind": "prepare"})):
        with open(path, "w") as file:
            json.dump(values, file)
    return lambda: inherit(parent, child, prepared, Store(str(tmp_path)), asked)


def recorded(tmp_path):
    return json.loads((tmp_path / "runs" / "0101-b-bbbb" / "record" / "0001" / "attempt.json").read_text())


CHANGES = {"rung": 1, "micro_batch": 2, "accumulation": 4, "loader_workers": 0}


@pytest.mark.parametrize(
    ("asked", "overridden"),
    [
        ((), ()),
        (("steps", "settings.x"), ()),
        (("batch.micro",), ("micro_batch", "accumulation")),
        (("loader_workers", "keep_checkpoints"), ("loader_workers",)),
    ],
)
def test_what_remedies_made_of_the_plan_holds_on_where_nobody_set_it_anew(tmp_path, asked, overridden):
    """Else the new run would fail again as its parent did, and be mended again."""
    answer = given(tmp_path, {**ENDED, "remedy": {"changes": CHANGES}}, asked=asked)()
    assert answer["changes"] == {name: one for name, one in CHANGES.items() if name not in overridden}
    assert recorded(tmp_path)["changes"] == answer["changes"]


@pytest.mark.parametrize(
    ("failure", "step"),
    [(None, 15), ({"since": None}, 15), ({"since": 16}, 15), ({"since": 15}, 10), ({"since": 6}, 5)],
)
def test_what_an_unanswered_failure_has_spoilt_is_not_gone_on_from(tmp_path, failure, step):
    """Its agent died before it could set them aside, and the run was ended by a client."""
    failure = failure and {"class": "nan-divergence", **failure}
    states = ({**ENDED, "state": "running", "failure": failure}, {"state": "stopped"})
    answer = given(tmp_path, *states)()
    parent = {"run": "0101-a-aaaa", "checkpoint": f"step-{step}", "step": step}
    assert answer == {"parent": parent, "changes": {}, "passed_over": []}
    assert recorded(tmp_path) == {"kind": "prepare", "parent": parent, "changes": {}}


def test_another_host_gets_the_newest_checkpoint_that_is_neither_damaged_nor_spoilt(tmp_path):
    """A run that moves is stopped first: with one that the other host refuses, it would be stuck."""
    failure = {"class": "nan-divergence", "since": 15}
    given(tmp_path, {**ENDED, "state": "running", "failure": failure}, {"state": "stopped"})
    asked = {"run": "0101-a-aaaa", "which": "whole"}
    (tmp_path / "runs" / "0101-a-aaaa" / "work" / "checkpoints" / "step-10" / "model").write_bytes(b"w" * 693)
    answer = serve.answer(ClientSession(str(tmp_path), None), "checkpoint", asked).values
    assert answer["name"] == "step-5"
    assert answer["passed_over"] == [{"checkpoint": "step-10", "wrong": "model has other contents"}]


@pytest.mark.parametrize(
    ("consumed", "steps", "code"),
    [
        (["steps"], 100, "cannot-resume"),
        (["resume", "held resume"], 100, "cannot-resume"),
        (["resume"], 3, "steps"),
    ],
)
def test_what_would_do_nothing_or_everything_again_is_refused(tmp_path, consumed, steps, code):
    """A script that does not take the checkpoint, and a plan that ends before it; the child gets nothing."""
    with pytest.raises(ParentError) as caught:
        given(tmp_path, {**ENDED, "consumed": consumed}, steps=steps)()
    assert caught.value.code == code
    child = tmp_path / "runs" / "0101-b-bbbb"
    assert sorted(path.relative_to(child).as_posix() for path in child.glob("*/*")) == [
        "control/plan.json",
        "record/0001",
    ]


def test_a_run_that_failed_after_its_last_step_goes_on_with_the_rest(tmp_path):
    """An upload that was refused: the training itself has nothing left to do. A success has nothing left at all."""
    assert given(tmp_path / "a", ENDED, steps=15)()["parent"]["step"] == 15
    with pytest.raises(ParentError, match="is not above 15"):
        given(tmp_path / "b", {**ENDED, "state": "succeeded"}, steps=15)()


def test_a_plan_without_steps_leaves_their_number_to_the_script(tmp_path):
    """As in any attempt."""
    assert given(tmp_path, ENDED, steps=None)()["parent"]["step"] == 15


@pytest.mark.parametrize(
    ("name", "is_linked"),
    [("step-15", True), ("checkpoint-0015", True), ("latest", False), ("step-115", False)],
)
def test_only_a_folder_that_is_written_once_is_linked(tmp_path, name, is_linked):
    """One that a script saves into again and again, in place, would change the parent's files with its own."""
    inherits = given(tmp_path, ENDED)
    folder = tmp_path / "runs" / "0101-a-aaaa" / "work" / "checkpoints"
    (folder / "step-15").rename(folder / name)
    assert inherits()["parent"] == {"run": "0101-a-aaaa", "checkpoint": name, "step": 15}
    taken = tmp_path / "runs" / "0101-b-bbbb" / "work" / "checkpoints" / name
    assert tree(taken) == tree(folder / name)
    assert ((taken / "model").stat().st_nlink == 2) is is_linked
