"""The folders of builds: those that a killed builder left go, and nobody else's."""

import os
import time

import pytest

from launcher.agent.making import scratch_folder
from launcher.agent.record.locks import Lock


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where the folders lie."""
    monkeypatch.setattr(scratch_folder, "MEMORY", str(tmp_path))
    return tmp_path


def made(place, name, age_s, *, has_lock=True):
    folder = place / f"{scratch_folder.PREFIX}{os.getuid()}-{name}"
    folder.mkdir()
    (folder / "secret-pip").write_text("x")
    if has_lock:
        (folder / "lock").touch()
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


def test_what_a_killed_builder_left_goes_with_the_next_build(place):
    """Not a folder that is held, nor one so young that its builder may be about to take its lock."""
    left, held, young = made(place, "left", 100), made(place, "held", 100), made(place, "young", 1)
    unlocked = made(place, "unlocked", 1, has_lock=False)
    lock = Lock.take(str(held / "lock"))
    folder, own = scratch_folder.new_folder()
    assert [one.exists() for one in (left, held, young, unlocked)] == [False, True, True, True]
    assert os.path.isdir(folder)
    for one in (lock, own):
        one.release()


def test_a_folder_that_another_sweep_takes_meanwhile_is_no_error(place, monkeypatch):
    """It is listed, and gone when it is looked at."""
    monkeypatch.setattr(
        scratch_folder.os, "listdir", lambda _: [f"{scratch_folder.PREFIX}{os.getuid()}-gone"]
    )
    scratch_folder.new_folder()[1].release()
