"""What sbatch is told of a run's time, with the variables of a login that it reads too; `scontrol` is a stand-in."""

import json
from pathlib import Path

import pytest

from launcher.agent.liveness.liveness import StartError
from launcher.agent.liveness.slurm import slurm_submission
from launcher.agent.liveness.slurm.slurm_jobs import asked_s, name_of
from launcher.agent.liveness.slurm.slurm_liveness import SlurmLiveness
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


def test_the_name_of_a_job_begins_with_the_runs():
    """`squeue` shows eight letters of it."""
    runs = ["261126-train-aaaaaa", "261126-long-name-aaaaab", "1126-train-yk8d"]
    assert [name_of(run) for run in runs] == ["train-aaaaaa", "long-name-aaaaab", "train-yk8d"]


LIMITS = """echo 'sbatch: error: {word}' >&2
echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user'"'"'s size and/or time limits)' >&2
exit 1"""
"""As Slurm 22.05.8 with accounting says it."""


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("QOSMaxSubmitJobPerUserLimit", "limit-reached"),
        ("AssocMaxSubmitJobLimit", "limit-reached"),
        ("AssocGrpSubmitJobsLimit", "limit-reached"),
        ("QOSMaxWallDurationPerJobLimit", "not-submitted"),
        ("AssocMaxCpuPerJobLimit", "not-submitted"),
    ],
)
def test_a_limit_that_passes_is_told_from_one_that_never_does(tmp_path, programs, word, code):
    """By the first word of sbatch: the rest is the same for both. The next try submits the run."""
    run = Run(str(tmp_path / "root" / "runs" / "261126-cluster-aaaaaa"))
    run.make()
    Path(run.plan).write_text("{}")
    programs.put("sbatch", LIMITS.format(word=word))
    programs.put("squeue", "")
    programs.put("scontrol", PARTITIONS)
    with pytest.raises(StartError) as raised:
        slurm_submission.submit(run)
    assert (raised.value.code, word in str(raised.value)) == (code, True)
    programs.put("sbatch", "echo 7")
    assert slurm_submission.submit(run) == "7"


@pytest.mark.parametrize(
    ("before", "written", "asked"),
    [
        (("running", ["5"]), "ok", ["--dependency=afterok:5", "--kill-on-invalid-dep=yes"]),
        (("reserved", ["4", "5"]), "any", ["--dependency=afterany:5", "--kill-on-invalid-dep=yes"]),
        (("succeeded", ["5"]), "ok", []),
        (("failed", ["5"]), "any", []),
        (("failed", ["5"]), "ok", "is failed: a run after it would never start"),
        (("waiting", ["6"]), "any", "let it go on first   launch recover bbbbbb"),
        (("running", ["6"]), "ok", "is interrupted; let it go on first"),  # Slurm has forgotten its job
        (("running", []), "ok", "is interrupted"),
        (None, "ok", "is not below"),
    ],
)
def test_a_run_after_another_waits_for_its_job(tmp_path, programs, before, written, asked):
    """Unless that has ended; a run that would never start, or start too early, is refused, and no job is submitted."""
    root = tmp_path / "root" / "runs"
    run, other = Run(str(root / "261126-second-aaaaaa")), Run(str(root / "261126-first-bbbbbb"))
    run.make()
    if before is not None:
        other.make()
        other.new_folder().write_state("reserved")
        other.new_folder().write_state(before[0])
        Path(other.slurm).write_text(json.dumps({"version": 1, "jobs": before[1], "asked": None}))
    Path(run.plan).write_text(json.dumps({"slurm": {"after": [f"{other.id}:{written}"]}}))
    shown = f"echo '5|RUNNING|None|N/A|N/A|1|node1|launch:{other.id}'"
    gone = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    for program, answer in (("sbatch", "echo 7"), ("squeue", shown), ("scontrol", gone), ("sacct", "exit 1")):
        programs.put(program, answer)
    run.new_folder().write_state("preparing")
    if isinstance(asked, str):
        with pytest.raises(StartError, match=asked):
            SlurmLiveness().start(run, 1)
        assert programs.asked("sbatch") == []
        return
    SlurmLiveness().start(run, 1)
    (words,) = programs.asked("sbatch")
    assert [word for word in words.split() if "dep" in word] == asked


def test_a_dependency_of_the_users_own_stays_beside_the_runs(tmp_path, programs):
    """`sbatch` would take the last flag alone."""
    run = Run(str(tmp_path / "root" / "runs" / "261126-cluster-aaaaaa"))
    run.make()
    Path(run.plan).write_text(json.dumps({"slurm": {"flags": ["--depend=afterok:26", "--nodes=1"]}}))
    programs.put("sbatch", "echo 7")
    programs.put("scontrol", PARTITIONS)
    assert slurm_submission.submit(run, ["afterok:27"]) == "7"
    (words,) = programs.asked("sbatch")
    assert [word for word in words.split() if word.startswith(("--dep", "--kill-on"))] == [
        "--dependency=afterok:26,afterok:27",
        "--kill-on-invalid-dep=yes",
    ]


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
