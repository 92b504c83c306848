"""What Slurm itself reports of runs, and what their scripts may ask of it; judged by Slurm's own programs and a ledger."""

from __future__ import annotations

import pytest
from runs.slurm.test_slurm_verbs import Hive
from testbed.client import until

pytestmark = pytest.mark.testbed

ASKS = """
env | grep '^SLURM_' | sort >~/own-variables
srun hostname >>~/asked
srun --ntasks=1 sh -c 'echo "$HOME"' >>~/asked
sbatch --parsable --output=/dev/null --wrap='echo inner >>~/asked' >>~/asked-jobs
"""


@pytest.fixture
def hive(client, slurm_for_all):
    """A client of the cluster that has nothing on it; the jobs of its runs are ended afterwards, and no others."""
    slurm_for_all.ssh("sh", "-c", "rm -rf enough deaf asked* followed own-variables")
    made = Hive(client, slurm_for_all)
    yield made
    made.end_jobs()


def end_of(hive, run):
    """The state and the exit status of a run's job, as the controller has them."""
    said = hive.cluster.until_state(hive.job(run), "COMPLETED", "FAILED", "CANCELLED")
    return said["JobState"], said["ExitCode"]


def launched(hive, *command):
    """Launch a command, wait for its end, and return its run and the exit code of launch."""
    done = hive.client.run("--host", hive.name, "--profile", "cpu", "--", *command)
    return max(path.name for path in hive.client.runs.glob("[0-9]*")), done


def test_slurm_reports_the_end_of_a_run_as_it_was(hive):
    """A job that depends on a success does not start after a failure, and a stopped run was cancelled."""
    run, done = launched(hive, "sh", "-c", "exit 3")
    assert done.returncode == 1, done.stderr
    assert end_of(hive, run) == ("FAILED", "3:0")
    cluster = hive.cluster
    never = cluster.submit(
        "echo after >>~/followed", f"--dependency=afterok:{hive.job(run)}", "--kill-on-invalid-dep=yes"
    )
    cluster.until_state(never, "CANCELLED")
    stopped = hive.start()
    hive.trains(stopped)
    hive.client.ok("stop", stopped)
    assert end_of(hive, stopped)[0] == "CANCELLED"
    assert hive.row(stopped)["state"] == "stopped"
    assert cluster.ssh("cat", "followed", check=False) == ""


def test_srun_and_sbatch_in_a_run_work_as_in_any_job(hive):
    """With the variables of the job, a home, and a way to the controller; the run has succeeded, and its job too."""
    cluster = hive.cluster
    run, done = launched(hive, "sh", "-c", ASKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert end_of(hive, run) == ("COMPLETED", "0:0")
    inner = cluster.ssh("cat", "asked-jobs").strip()
    cluster.until_state(inner, "COMPLETED")
    asked = cluster.ssh("cat", "asked").split()
    assert asked[0] in ("node1", "node2")
    assert asked[1:] == [cluster.ssh("pwd").strip(), "inner"]
    until(lambda: cluster.ssh("cat", "own-variables"), "variables")
    plain = cluster.submit(
        "env | grep '^SLURM_' | sort >~/asked-plain", "--output=/dev/null", "--nodes=1", "--ntasks-per-node=1"
    )
    cluster.until_state(plain, "COMPLETED")
    names = [
        {line.partition("=")[0] for line in cluster.ssh("cat", path).splitlines()}
        for path in ("own-variables", "asked-plain")
    ]
    assert names[0] == names[1], names[0] ^ names[1]


def test_the_lines_of_a_job_script_reach_slurm(hive):
    """With the time and the memory that the script asks for; what is left out is said."""
    lines = "#SBATCH --job-name=mine\n#SBATCH -t 0:07:00\n#SBATCH --mem=700M\n#SBATCH --array=1-2\n"
    hive.client.script(f"#!/bin/bash\n{lines}echo began >>~/asked\n", "job.sbatch")
    run, done = launched(hive, "bash", "job.sbatch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its #SBATCH lines ask for --time=0:07:00 --mem=700M; left out: --array=1-2" in done.stderr
    said = hive.cluster.job(hive.job(run))
    assert (said["TimeLimit"], said["MinMemoryNode"], said["JobState"]) == ("00:07:00", "700M", "COMPLETED")
    assert hive.cluster.ssh("cat", "asked") == "began\n"
