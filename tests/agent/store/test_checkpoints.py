"""Which checkpoints are there, which is gone on from, which are set aside, and which go."""

import hashlib
import json
import os
import shutil
import signal
import subprocess

import pytest

from launcher.agent.store.checkpoints import (
    MIN_ROOM,
    ChosenCheckpoint,
    Room,
    choose,
    prune,
    room,
    sealed,
    set_aside,
    set_aside_damaged,
    tidy,
    what_is_wrong,
)


def make(folder, name, manifest):
    (folder / name).mkdir()
    if manifest is not None:
        (folder / name / "manifest.json").write_text(manifest)


def test_only_what_the_worker_has_sealed_is_a_checkpoint(tmp_path):
    """Neither one without a manifest, nor a torn one, a hidden one, or a file."""
    make(tmp_path, "step-10", json.dumps({"step": 10}))
    make(tmp_path, "step-9", json.dumps({"step": 9}))
    make(tmp_path, "step-11", None)
    make(tmp_path, "step-12", '{"step": 1')
    make(tmp_path, "step-13", json.dumps({"step": "13"}))
    make(tmp_path, ".step-14.new", json.dumps({"step": 14}))
    (tmp_path / "notes").write_text("")
    assert [step for step, _ in sealed(str(tmp_path))] == [9, 10]
    assert sealed(str(tmp_path / "missing")) == []


def test_a_pipe_a_device_and_a_huge_file_in_a_manifests_place_stop_nobody(tmp_path):
    """A job makes them; the agent, which holds the cards, reads the manifests after a failure. The alarm ends a hang."""
    for name in ("pipe", "zero", "huge"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "manifest.json")
    (tmp_path / "zero" / "manifest.json").symlink_to("/dev/zero")
    with (tmp_path / "huge" / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)
    empty = {"size": 0, "sha256": hashlib.sha256().hexdigest()}
    make(tmp_path, "step-3", json.dumps({"step": 3, "files": {"weights": empty}}))
    os.mkfifo(tmp_path / "step-3" / "weights")
    signal.alarm(20)
    try:
        assert [step for step, _ in sealed(str(tmp_path))] == [3]
        assert what_is_wrong(str(tmp_path / "step-3")) == "weights is not a regular file"
    finally:
        signal.alarm(0)


def test_what_is_set_aside_is_whole_and_out_of_the_way_and_twice_is_once(tmp_path):
    """From the first bad step on; one of the same name later goes beside it."""
    for _ in range(2):
        for step in (2, 4, 6):
            if not (tmp_path / f"step-{step}").exists():
                make(tmp_path, f"step-{step}", json.dumps({"step": step}))
        assert set_aside(str(tmp_path), 4) == ["step-4", "step-6"]
        assert set_aside(str(tmp_path), 4) == []
        assert [step for step, _ in sealed(str(tmp_path))] == [2]
    assert len(list(tmp_path.glob(".rejected-*/step-4/manifest.json"))) == 2


def seal(folder, name, step, text="weights"):
    """A checkpoint as the worker leaves it."""
    (folder / name).mkdir()
    (folder / name / "weights").write_text(text)
    told = {"size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (folder / name / "manifest.json").write_text(json.dumps({"step": step, "files": {"weights": told}}))
    return folder / name


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"weights": {"size": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}}, None),
        ({"weights": {"size": 8}}, "weights has another size"),
        ({"weights": {"size": 7, "sha256": "ab"}}, "weights has other contents"),
        ({"gone": {"size": 7}}, "gone: No such file or directory"),
        ({"weights": 7}, "its manifest names no files"),
        (None, "its manifest names no files"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_said(tmp_path, files, wrong):
    """By file, and without a word where nothing is."""
    path = seal(tmp_path, "step-3", 3)
    (path / "manifest.json").write_text(json.dumps({"step": 3, "files": files}))
    assert what_is_wrong(str(path)) == wrong


def test_the_newest_whole_one_is_chosen_by_its_step(tmp_path):
    """Not by its name or its date; what is wrong with newer ones is told."""
    for step in (8, 9, 10):
        seal(tmp_path, f"checkpoint-{step}", step)
    (tmp_path / "checkpoint-10" / "weights").write_text("WEIGHTS")
    assert choose(str(tmp_path)) == ChosenCheckpoint(
        9, str(tmp_path / "checkpoint-9"), {"checkpoint-10": "weights has other contents"}
    )
    assert choose(str(tmp_path / "missing")) == ChosenCheckpoint(None, None, {})


def test_what_a_crash_has_left_is_finished_or_removed(tmp_path):
    """What was sealed gets its name, what was half-done goes; what a script keeps there itself stays."""
    seal(tmp_path, "step-1", 1)
    seal(tmp_path, ".step-2.new", 2)  # sealed, and killed before it had its name
    seal(tmp_path, "step-3", 3)
    seal(tmp_path, ".step-3.old", 3)
    seal(tmp_path, ".step-4.old", 4)  # killed between the old one's leave and the new one's name
    for torn in (".step-5.new", "step-6", ".dropped-step-0", "checkpoint-7"):
        (tmp_path / torn).mkdir()
    (tmp_path / "checkpoint-7" / "checkpoint-is-incomplete.txt").touch()
    (tmp_path / "checkpoint-8").mkdir()  # of a Trainer whose checkpoints nobody seals, for all we know
    (tmp_path / "logs").mkdir()
    (tmp_path / "README.md").touch()
    (tmp_path / "step-6" / "weights").write_text("half")
    removed, aside = tidy(str(tmp_path), is_all_sealed=False)
    assert set(removed) == {".step-3.old", ".step-5.new", ".dropped-step-0"}
    assert set(aside) == {"step-6", "checkpoint-7"}
    assert (tmp_path / aside["step-6"] / "weights").read_text() == "half"
    kept = {"step-1", "step-2", "step-3", "step-4", "checkpoint-8", "logs", "README.md"}
    assert {name for name in names(tmp_path) if not name.startswith(".aside-")} == kept
    assert set(tidy(str(tmp_path), is_all_sealed=True).aside) == {"checkpoint-8"}
    assert tidy(str(tmp_path), is_all_sealed=True) == ([], {})


def test_a_scripts_own_checkpoints_stay_where_they_are(tmp_path):
    """Where the worker has sealed none, no folder is called damaged for that."""
    for name in ("step-0100", "step-0200", "checkpoint-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text("the script's own")
    make(tmp_path, "step-0300", '{"format": "pt"}')
    assert tidy(str(tmp_path), is_all_sealed=False) == ([], {})
    assert names(tmp_path) == {"step-0100", "step-0200", "step-0300", "checkpoint-3"}
    assert choose(str(tmp_path)).path is None


def test_what_a_script_wrote_itself_is_not_removed_to_make_room(tmp_path):
    """Neither in its place, with a manifest of its own, nor where it was moved."""
    for step in (1, 2):
        seal(tmp_path, f"step-{step}", step)
    make(tmp_path, "step-7", '{"step": 7, "by": "the script"}')
    make(tmp_path, "step-8", None)
    (tmp_path / "checkpoint-9").mkdir()
    aside = tidy(str(tmp_path), is_all_sealed=True).aside
    assert set(aside) == {"step-8", "checkpoint-9"}
    set_aside_damaged(str(tmp_path), choose(str(tmp_path)))
    assert prune(str(tmp_path)) == ["step-1"]
    assert {path.name for path in tmp_path.glob(".aside-*/*")} == {"step-7", "step-8", "checkpoint-9"}


def test_room_is_made_by_what_is_not_needed(tmp_path):
    """The newest whole one stays, and what is no checkpoint."""
    for step in (1, 2, 3):
        seal(tmp_path, f"step-{step}", step)
    (tmp_path / "step-3" / "weights").write_text("torn")
    seal(tmp_path, "checkpoint-0", 0)
    (tmp_path / ".rejected-abc").mkdir()
    (tmp_path / "logs").mkdir()
    assert set(prune(str(tmp_path))) == {"step-1", "step-3", "checkpoint-0", ".rejected-abc"}
    assert names(tmp_path) == {"step-2", "logs"}


def test_where_none_is_whole_none_is_removed_and_the_best_stays(tmp_path):
    """A disk that cannot be read has not lost them; the lowest eval_loss is worth its room."""
    for step in (1, 2, 3):
        path = seal(tmp_path, f"step-{step}", step)
        told = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps({**told, "eval_loss": float(step)}))
    assert prune(str(tmp_path)) == ["step-2"]
    for step in (1, 3):
        (tmp_path / f"step-{step}" / "weights").write_text("torn")
    assert prune(str(tmp_path)) == []


def test_what_is_no_folder_is_in_nobody_s_way(tmp_path):
    """A link where a checkpoint would be, or a file of a hidden name."""
    (tmp_path / "checkpoint-5").symlink_to(tmp_path)
    (tmp_path / ".dropped-x").touch()
    removed, aside = tidy(str(tmp_path), is_all_sealed=True)
    assert (removed, list(aside)) == ([".dropped-x"], ["checkpoint-5"])
    assert names(tmp_path) == {aside["checkpoint-5"].split("/")[0]}


@pytest.mark.parametrize(
    ("sealed", "own", "unsaved", "needed"),
    [
        ([], None, None, MIN_ROOM),
        ([1000, 2000], None, None, 2200),  # the newest, and a tenth
        ([2000], None, 1900, 2200),  # a part of one like it
        ([2000], None, 2300, 4600),  # it has grown
        ([], None, 300, 600),  # a part of nobody knows what
        ([], None, 0, MIN_ROOM),
        ([], 5000, None, 5000),  # the script's own, which is written over
        ([2000], 1500, None, 2200),
    ],
)
def test_what_the_next_checkpoint_needs(tmp_path, sealed, own, unsaved, needed):
    """As far as is known of those that were sealed, and of those that failed."""
    for step, size in enumerate(sealed, 1):
        path = seal(tmp_path, f"step-{step}", step)
        told = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps({**told, "files": {"weights": {"size": size}}}))
    if own is not None:
        (tmp_path / "step-9").mkdir()
        (tmp_path / "step-9" / "weights").write_bytes(b"x" * own)
        (tmp_path / "step-9" / "link").symlink_to("/proc/kcore")
    found = room(str(tmp_path), unsaved)
    assert found.needed == needed
    assert abs(found.free - shutil.disk_usage(tmp_path).free) < 1 << 30


def test_room_is_told_in_three_digits():
    """In units of a thousand, as everywhere."""
    assert Room(3_600_123, 44_012_345).words == "3.6 MB free, 44 MB needed for the next checkpoint"
    assert Room(17, 1_999_999_999).words == "17 bytes free, 2 GB needed for the next checkpoint"


@pytest.mark.testbed
def test_what_is_spoilt_is_set_aside_on_a_full_disk_too(small_disk):
    """To rename needs no room."""
    folder = small_disk / "checkpoints"
    folder.mkdir()
    for step in (1, 2):
        seal(folder, f"step-{step}", step)
    disk = os.statvfs(small_disk)
    used = disk.f_files - disk.f_ffree
    subprocess.run(["mount", "-o", f"remount,nr_inodes={used}", small_disk], check=True)
    with pytest.raises(OSError, match="No space"):
        (folder / "more").mkdir()
    assert set_aside(str(folder), 2) == ["step-2"]
    assert names(folder) == {"step-1", ".rejected-step-2"}
