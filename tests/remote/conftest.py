"""Fixtures: the segments of a run in a service."""

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
