"""Fixtures: the segments of a run in a service, and stand-ins for programs."""

import pytest
from testbed.client import kill_all_of
from testbed.segment import Segments


@pytest.fixture
def segments(tmp_path, monkeypatch):
    """A run's segments on this machine; what is left of them is ended."""
    made = Segments(tmp_path, monkeypatch)
    yield made
    made.clear_away()
    kill_all_of(tmp_path)


class Programs:
    """Shell scripts that a test writes in place of programs; each notes what it was asked."""

    def __init__(self, folder):
        self.folder = folder

    def put(self, name, script):
        """Write a program; the one before it is replaced in one step."""
        path = self.folder / name
        new = path.with_suffix(".new")
        new.write_text(f'#!/bin/sh\necho "$*" >>{path}.asked\n{script}\n')
        new.chmod(0o755)
        new.rename(path)

    def asked(self, name):
        """What a program was asked, in its order."""
        path = self.folder / f"{name}.asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The stand-ins that are found first."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Programs(folder)
