"""What sbatch is told of a run's time, with the variables of a login that it reads too; `scontrol` is a stand-in."""

import json
from pathlib import Path

import pytest

from launcher.agent.liveness.slurm import slurm_submission
from launcher.agent.liveness.slurm.slurm_jobs import asked_s, name_of
from launcher.agent.record.rundir import Run

PARTITIONS = """echo 'PartitionName=batch Default=YES DefaultTime=NONE MaxTime=7-00:00:00'
echo 'PartitionName=short Default=NO DefaultTime=NONE MaxTime=00:01:00'"""


@pytest.fixture
def told_s(tmp_path, monkeypatch, programs):
    """How long before its end a run is told of it, by what its plan says of Slurm, and a login's variables."""
    programs.put("scontrol", PARTITIONS)
    run = Run(str(tmp_path / "root" / "runs" / "261126-cluster-aaaaaa"))
    run.make()

    def told(variables, **settings):
        for name in ("SBATCH_TIMELIMIT", "SBATCH_PARTITION"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        Path(run.plan).write_text(json.dumps({"stop_grace_s": 30, "slurm": settings}))
        (signal,) = (flag for flag in slurm_submission.flags(run) if flag.startswith("--signal="))
        return int(signal.rpartition("@")[2])

    return told


def test_the_first_letters_of_a_name_tell_runs_apart():
    """`squeue` shows eight of them; the run's id is in it whole."""
    runs = ["261126-train-aaaaaa", "261126-train-aaaaab", "1126-train-yk8d"]
    names = [name_of(run) for run in runs]
    assert [name[:6] for name in names] == ["aaaaaa", "aaaaab", "yk8d-l"]
    assert all(run in name for run, name in zip(runs, names, strict=True))


def test_a_login_may_say_for_how_long_its_jobs_run(told_s):
    """One that may run for a minute would be told as it begins, a minute before its end. The plan comes first, as for sbatch."""
    assert told_s({}) == 60
    assert told_s({"SBATCH_TIMELIMIT": "1"}) == 30
    assert told_s({"SBATCH_TIMELIMIT": "1"}, time_s=3600, flags=["--time=60"]) == 60


def test_a_login_may_say_in_which_partition_its_jobs_run(told_s):
    """The limit is that partition's."""
    assert told_s({"SBATCH_PARTITION": "short"}) == 30
    assert told_s({"SBATCH_PARTITION": "short"}, flags=["--partition=batch"]) == 60
    assert told_s({"SBATCH_PARTITION": "short", "SBATCH_TIMELIMIT": "UNLIMITED"}) == 30


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5460),
        ("1:30:00", 5400),
        ("2-12", 216_000),
        ("2-12:30", 217_800),
        ("0-0:1:30", 120),
        ("0", None),
        ("-1", None),
        ("UNLIMITED", None),
        ("", None),
        ("1:2:3:4", None),
        ("soon", None),
    ],
)
def test_a_time_is_read_as_sbatch_reads_it(text, seconds):
    """Zero is no limit."""
    assert asked_s(text) == seconds
