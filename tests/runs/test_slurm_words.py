"""What a client says of runs of a Slurm cluster, from its own copies of them alone."""

import json
import re

import pytest

from launcher.cli.plain_view import PlainView
from launcher.runs import following
from launcher.runs.control import remembered
from launcher.runs.mirror import Mirror
from launcher.values.host import Host
from launcher.values.record import RunState
from launcher.values.slurm_settings import SlurmSettings

RUN = "261126-train-w8q2zz"
BEGAN = 1_000_000.0


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """The copy of a run of a cluster, with no folder yet."""
    monkeypatch.chdir(tmp_path)
    mirror = Mirror(RUN, tmp_path / "runs")
    mirror.bind_seen(Host(name="hive", kind="slurm", runtime="slurm", slurm=SlurmSettings()), "", BEGAN)
    (mirror.folder / "plan.json").write_text(json.dumps({"job": "train", "steps": 900}))
    folder(mirror, "prepare", BEGAN, state="reserved", time=BEGAN)
    return mirror


def folder(mirror, kind, began, **state):
    """Add a numbered folder."""
    path = mirror.folder / f"{len([*mirror.folder.glob('0*')]) + 1:04d}"
    path.mkdir()
    (path / "attempt.json").write_text(json.dumps({"kind": kind, "time": began}))
    (path / "state.json").write_text(json.dumps(state))
    return path


def end(mirror, capsys, **state):
    """Return what a person reads at the end of a run that was followed."""
    following.finish(mirror, RunState(**state), PlainView())
    return capsys.readouterr().err


def test_the_end_of_a_followed_run_counts_no_time_in_the_queue(mirror, capsys):
    """It is the time that `ps` shows: a run that waited four minutes and trained for 150 s took 2:30."""
    ended = {"state": "succeeded", "reason": "completed", "time": BEGAN + 394}
    folder(mirror, "attempt", BEGAN + 244, **ended)
    assert re.search(r"succeeded 2:30\b", end(mirror, capsys, **ended))
    assert remembered(mirror).took_s == 150


def test_a_job_that_slurm_has_ended_is_said_to_get_a_new_job(mirror, capsys):
    """And no container."""
    folder(mirror, "attempt", BEGAN, state="running", time=BEGAN)
    said = end(mirror, capsys, state="waiting", reason="client", time=BEGAN + 60)
    assert "launch recover w8q2zz     submits a new job" in said
    assert "container" not in said
