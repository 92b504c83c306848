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
            file.write(ascii(name))
        for changed in (path, os.path.dirname(path)):
            os.utime(changed, (number, number))
    return run


def failed_at(run, since):
    """Let the run's attempt have failed, with bad weights from a step on."""
    path = run.last().state
    with open(path) as file:
        state = json.load(file)
    with open(path, "w") as file:
        json.dump({**state, "failure": {"class": "nan-divergence", "since": since}}, file)


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
        (of("out/checkpoint-20", *TRAINER[:2]), OwnCheckpoint("out/checkpoint-20", 20, False)),
        ([*of("out/checkpoint-10", *TRAINER), "out/checkpoint-20/model.safetensors"], OwnCheckpoint("out/checkpoint-10", 10, True)),
        ([*of("out/checkpoint-10", *TRAINER), "samples/step_20/0.txt", "logs/eval_step_20", "ckpt.pt"], OwnCheckpoint("out/checkpoint-10", 10, True)),
        ([*of("out/checkpoint-175", *TRAINER), *of("out/checkpoint-95", *TRAINER)], OwnCheckpoint("out/checkpoint-95", 95, True)),
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


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(("epoch_0/model.safetensors", 30), ("best.ckpt", 30), ("last-v1.ckpt", 30), ("epoch=3-val_loss=0.12.ckpt", 30)),
        *(("ckpt_100.pt", 100), ("ckpt-5.pt", 5), ("model_100.pt", 100), ("checkpoint_last.pt", 30), ("snapshot.pt", 30)),
        *(("iter_0000100/x", 100), ("latest_checkpoint.pt", 30), ("checkpoint-best/x", 30), ("model_step_100.safetensors", 100)),
        *(("global_step500/x", 500), ("checkpoint.pth.tar", 30)),
    ],
)  # fmt: skip
def test_these_are_names_of_checkpoints(tmp_path, name, step):
    found = script_checkpoint.newest(parent_at(tmp_path, [f"out/{name}"]), 30)
    assert (found.path, found.step) == (f"out/{name.partition('/')[0]}", step)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "model.safetensors",
            "model.pt",
            "data.pt",
            "steps.pt.txt",
            "epochs.png",
            "last.txt",
            "samples/epoch.txt",
        ),
        f"checkpoint-{'9' * 200}/x",
    ],
)
def test_these_are_not(tmp_path, name):
    assert script_checkpoint.newest(parent_at(tmp_path, [f"out/{name}"]), 30) is None


def test_a_name_that_is_not_utf_8_is_not_offered(tmp_path):
    """No client can show it, or name it to its script."""
    run = parent_at(tmp_path, [os.fsdecode(b"out\xff/checkpoint-5/x")])
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
    """All are copies: a script that saves into the same folder again would write into its parent's files."""
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

    for name in found:
        source, copy = (os.stat(os.path.join(run.code, name)) for run in (parent, child))
        assert source.st_ino != copy.st_ino
        assert source.st_mtime_ns == copy.st_mtime_ns
    with open(os.path.join(child.code, "out/log.txt")) as file:
        assert file.read() == repr("out/log.txt")


def test_the_next_run_continues_from_the_checkpoint_that_was_the_last(tmp_path):
    """`checkpoint-95` comes after `checkpoint-175` in the order of names."""
    parent = parent_at(tmp_path, [*of("out/checkpoint-95", *TRAINER), *of("out/checkpoint-175", *TRAINER)])
    answer, child = inherited(tmp_path, parent)
    assert answer["parent"]["checkpoint"] == "out/checkpoint-175"
    plan = {"inject": True}
    assert script_checkpoint.for_the_hook(child, plan, is_asked=True).path == "out/checkpoint-175"
    assert script_checkpoint.for_the_hook(child, plan, is_asked=False) is None
    assert script_checkpoint.for_the_hook(child, {**plan, "restart": True}, is_asked=False).step == 175


def test_a_file_that_was_sent_and_changed_is_handed_on_as_it_is_now(tmp_path):
    """And what the store holds of it stays."""
    parent = parent_at(tmp_path, ["ckpt.pt"])
    child = Run(str(tmp_path / "runs" / "0101-b-bbbb"))
    child.make()
    sent, copy = tmp_path / "sent", os.path.join(child.code, "ckpt.pt")
    os.makedirs(child.code)
    sent.write_text("as it was sent")
    os.link(sent, copy)
    script_checkpoint.hand_on(parent, child)
    with open(copy) as file:
        assert file.read() == repr("ckpt.pt")
    assert sent.read_text() == "as it was sent"


def test_links_of_the_script_are_made_again_inside_the_run(tmp_path):
    """Lightning's `last.ckpt`, for example. One that leads out, or names a place by its whole path, is not."""
    parent = parent_at(tmp_path, ["ck/epoch=0-step=4.ckpt"])
    links = {"ck/last.ckpt": "epoch=0-step=4.ckpt", "newest": "ck/last.ckpt", "all": "ck"}
    for name, target in {**links, "out": "../../../secret", "abs": "/etc/passwd", "gone": "nothing"}.items():
        os.symlink(target, os.path.join(parent.code, name))
    _, child = inherited(tmp_path, parent, "command")
    found = {
        os.path.relpath(os.path.join(folder, name), child.code)
        for folder, folders, names in os.walk(child.code)
        for name in (*folders, *names)
        if os.path.islink(os.path.join(folder, name))
    }
    assert found == {*links, "gone"}
    with open(os.path.join(child.code, "newest")) as file:
        assert file.read() == repr("ck/epoch=0-step=4.ckpt")


def test_a_secret_in_a_checkpoints_path_is_not_told(tmp_path):
    """By the names that were recorded while the secret was known."""
    parent = parent_at(tmp_path, of("out-hunter2/step_7", "model.pt"))
    real = "code/out-hunter2/step_7/model.pt"
    with open(parent.hidden_names, "w") as file:
        json.dump({real.replace("hunter2", "{secret}"): real}, file)
    with pytest.raises(ParentError, match=r"out-\{secret\}/step_7") as caught:
        inherited(tmp_path, parent)
    assert "hunter2" not in str(caught.value)


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


def test_after_a_divergence_only_checkpoints_from_before_it_count(tmp_path):
    """They alone are handed on; one whose name has no step may be of any time, so the user has to name it."""
    files = [
        *of("out/checkpoint-10", *TRAINER),
        *of("out/checkpoint-18", *TRAINER),
        *of("out/checkpoint-20", *TRAINER),
        "last.ckpt",
    ]
    run = parent_at(tmp_path, files)
    failed_at(run, 19)
    assert script_checkpoint.newest(run, 30, script_checkpoint.bad_from(run)) == OwnCheckpoint(
        "out/checkpoint-10", 10, True
    )
    child = Run(str(tmp_path / "runs" / "0102-a-bbbb"))
    child.make()
    inherit(run, child, child.new_folder(), Store(str(tmp_path / "store")), {})
    assert sorted(os.listdir(os.path.join(child.code, "out"))) == ["checkpoint-10"]
    assert os.path.exists(os.path.join(child.code, "last.ckpt"))


def test_without_a_checkpoint_from_before_a_divergence_a_resume_says_so(tmp_path):
    run = parent_at(tmp_path, of("out/checkpoint-20", *TRAINER))
    failed_at(run, 1)
    with pytest.raises(ParentError, match="no checkpoint of its own from before step 1,"):
        inherit(run, Run(str(tmp_path / "runs" / "0102-a-bbbb")), None, Store(str(tmp_path / "store")), {})
