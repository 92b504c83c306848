"""The checkpoints that a script saves itself: which one is the last, and what the next run gets of its files."""

import json
import os

import pytest

from launcher.agent.record.rundir import Run
from launcher.agent.store import script_checkpoint
from launcher.agent.store.inheritance import ParentError, inherit
from launcher.agent.store.script_checkpoint import OwnCheckpoint
from launcher.agent.store.store import Store
from launcher.agent.system.process import host_id

TRAINER = ("training_args.bin", "model.safetensors", "trainer_state.json")


def parent_at(root, files, *, sent=(), **plan):
    """An ended run of 30 steps whose script wrote these files one after the other; those in `sent` came with its code."""
    run = Run(str(root / "runs" / "0101-a-aaaa"))
    run.make()
    values = {"state": "failed", "began": True, "consumed": [], "step": 30}
    for kind, state in (("prepare", {"state": "preparing"}), ("attempt", values)):
        folder = run.new_folder()
        with open(folder.attempt, "w") as file:
            json.dump({"place_id": host_id(), "kind": kind, "runtime": None}, file)
        with open(folder.state, "w") as file:
            json.dump(state, file)
        folder.release()
    manifest = {f"code/{path}": {"sha256": "0" * 64, "size": 1, "mode": 0o644} for path in sent}
    for path, values in ((run.manifest, manifest), (run.plan, {"inject": True, **plan})):
        with open(path, "w") as file:
            json.dump(values, file)
    for number, name in enumerate([*sent, *files]):
        path = os.path.join(run.code, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(name)
        for changed in (path, os.path.dirname(path)):
            os.utime(changed, (number, number))
    return run


def of(folder, *names):
    return [f"{folder}/{name}" for name in names]


@pytest.mark.parametrize(
    ("files", "newest"),
    [
        ([*of("out/checkpoint-10", *TRAINER), *of("out/checkpoint-20", *TRAINER)], OwnCheckpoint("out/checkpoint-20", 20, True)),
        ([*of("out/checkpoint-10", *TRAINER), *of("out/checkpoint-20", *TRAINER[:2])], OwnCheckpoint("out/checkpoint-10", 10, True)),
        ([*of("out/checkpoint-9", *TRAINER), "out/checkpoint-9/checkpoint-is-incomplete.txt"], None),
        (of("ck/step_7", "model.safetensors", "random_states_0.pkl"), OwnCheckpoint("ck/step_7", 7, False)),
        (["logs/epoch=1-step=40.ckpt", "logs/epoch=2-step=60.ckpt"], OwnCheckpoint("logs/epoch=2-step=60.ckpt", 60, False)),
        (["ck/step_9.pt", "ck/step_10.pt"], OwnCheckpoint("ck/step_10.pt", 10, False)),
        (["ckpt.pt", "results.json"], OwnCheckpoint("ckpt.pt", 30, False)),
        (["epoch1.pt", "epoch2.pt"], OwnCheckpoint("epoch2.pt", 30, False)),
        (["last.ckpt"], OwnCheckpoint("last.ckpt", 30, False)),
        (["results.json", "steps.txt", "step-by-step.md", "checkpoints.md", ".cache/ckpt.pt"], None),
    ],
)  # fmt: skip
def test_the_last_whole_checkpoint_is_found_by_the_names_that_libraries_give(tmp_path, files, newest):
    assert script_checkpoint.newest(parent_at(tmp_path, files), 30) == newest


def test_a_checkpoint_that_was_sent_is_not_the_runs(tmp_path):
    """The base model of a fine-tune often lies in a folder of this name."""
    run = parent_at(tmp_path, of("out/checkpoint-5", *TRAINER), sent=of("base/checkpoint-500", *TRAINER))
    assert script_checkpoint.newest(run, 30) == OwnCheckpoint("out/checkpoint-5", 5, True)
    run = parent_at(tmp_path / "b", [], sent=[*of("base/checkpoint-500", *TRAINER), "ckpt.pt"])
    assert script_checkpoint.newest(run, 30) is None


def inherited(tmp_path, parent, *asked):
    """Give a new run its parent's files; return the answer and the new run's code."""
    child = Run(str(tmp_path / "runs" / "0101-b-bbbb"))
    child.make()
    prepared = child.new_folder()
    for path, values in ((child.plan, {}), (prepared.attempt, {"kind": "prepare"})):
        with open(path, "w") as file:
            json.dump(values, file)
    with open(parent.manifest, "w") as file:
        json.dump({}, file)
    answer = inherit(parent, child, prepared, Store(str(tmp_path)), asked)
    return answer, child


def test_the_next_run_gets_what_the_script_wrote_and_the_parent_stays(tmp_path):
    """A file that the script may write over again is a copy; a Trainer's checkpoint is written once, so it is linked."""
    files = [*of("out/checkpoint-20", *TRAINER), "out/log.txt", "__pycache__/x.pyc"]
    parent = parent_at(tmp_path, files)
    secret = tmp_path / "id_secret"
    secret.write_text("key")
    os.symlink(secret, os.path.join(parent.code, "out", "key"))
    answer, child = inherited(tmp_path, parent)
    origin = {"run": "0101-a-aaaa", "checkpoint": "out/checkpoint-20", "step": 20, "is_trainers": True}
    assert answer == {"parent": origin, "changes": {}, "passed_over": []}
    found = {
        os.path.relpath(os.path.join(folder, name), child.code)
        for folder, _, names in os.walk(child.code)
        for name in names
    }
    assert found == {*of("out/checkpoint-20", *TRAINER), "out/log.txt"}

    def inode(run, path):
        return os.stat(os.path.join(run.code, path)).st_ino

    assert inode(parent, files[0]) == inode(child, files[0])
    assert inode(parent, "out/log.txt") != inode(child, "out/log.txt")
    with open(os.path.join(child.code, "out/log.txt")) as file:
        assert file.read() == "out/log.txt"


@pytest.mark.parametrize(
    ("files", "plan", "asked", "code"),
    [
        ([], {}, (), "cannot-resume"),
        ([], {}, ("command",), "cannot-resume"),
        (["weights.npz"], {}, (), "cannot-resume"),
        (["weights.npz"], {}, ("command",), None),
        (["weights.npz"], {"restart": True}, (), None),
        (["ckpt.pt"], {}, (), "own-checkpoint"),
        (["ckpt.pt"], {"restart": True}, (), None),
        (of("out/checkpoint-20", *TRAINER), {"inject": False}, (), "own-checkpoint"),
    ],
)
def test_only_a_script_that_will_load_its_checkpoint_begins_again(tmp_path, files, plan, asked, code):
    """By the hook, by the user's own option, or because the job says that it finds it itself."""
    parent = parent_at(tmp_path, files, **plan)
    if code is None:
        answer, _ = inherited(tmp_path, parent, *asked)
        assert (answer["parent"]["step"], answer["parent"]["is_trainers"]) == (30, False)
        return
    with pytest.raises(ParentError) as caught:
        inherited(tmp_path, parent, *asked)
    assert caught.value.code == code
