"""What Slurm itself reports of runs, and what their scripts may ask of it; judged by Slurm's own programs and a ledger."""

from __future__ import annotations

import json
import re
import signal

import pytest
from runs.slurm.test_slurm_verbs import Hive
from testbed.client import until

pytestmark = pytest.mark.testbed

ASKS = """
env | grep '^SLURM_' | sort >~/own-variables
cd "$SLURM_SUBMIT_DIR" && test -e train.py && srun hostname >>~/asked
srun --ntasks=1 sh -c 'echo "$HOME"' >>~/asked
sbatch --parsable --output=/dev/null --wrap='echo inner >>~/asked' >>~/asked-jobs
"""


@pytest.fixture
def hive(client, slurm_for_all, request, record_property):
    """A client of the cluster that has nothing on it; the jobs of its runs are ended afterwards, and no others."""
    slurm_for_all.ssh("sh", "-c", "rm -rf enough deaf asked* followed own-variables")
    made = Hive(client, slurm_for_all)
    made.ends = []
    yield made
    made.end_jobs()
    record_property("what", request.node.name.removeprefix("test_").replace("_", " "))
    record_property("said", ", ".join(f"{name} {state} {code}" for name, state, code in made.ends) or "-")


def end_of(hive, run):
    """The state and the exit status of a run's job by the controller; by accounting they are the same, where it is kept."""
    job = hive.job(run)
    said = hive.cluster.until_state(job, "COMPLETED", "FAILED", "CANCELLED")
    ended = said["JobState"], said["ExitCode"]
    if hive.cluster.has_accounting:
        until(lambda: hive.cluster.accounted(job)[0] == ended[0], f"accounting of job {job}")
        by_accounts = hive.cluster.accounted(job)
        hive.ends.append((run.partition("-")[2].rpartition("-")[0], *by_accounts))
        assert ended[0] == "CANCELLED" or by_accounts == ended
    return ended


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
    assert "its #SBATCH lines ask for --time=0:07:00 --mem=700M; left out: --array (" in done.stderr
    said = hive.cluster.job(hive.job(run))
    assert (said["TimeLimit"], said["MinMemoryNode"], said["JobState"]) == ("00:07:00", "700M", "COMPLETED")
    assert re.search(
        r"used   \d+ % of 1 CPU; its largest process 0\.\d+ of 0.68 GiB", done.stdout + done.stderr
    )
    assert hive.cluster.ssh("cat", "asked") == "began\n"
    assert end_of(hive, run) == ("COMPLETED", "0:0")


def test_a_run_starts_after_another(hive):
    """If that succeeds, or whatever its end; one that would never start is ended by Slurm, and says why."""
    cluster = hive.cluster
    first = hive.start()
    second = hive.start("--after", first)
    hive.trains(first)
    assert cluster.job(hive.job(second))["Reason"] == "Dependency"
    refused = hive.client.run("--host", "local", "--after", first, "--", "true")
    assert (refused.returncode, "only a Slurm cluster" in refused.stderr) == (2, True)
    cluster.ssh("touch", "enough")
    until(lambda: hive.row(second)["state"] == "succeeded", "the second run")
    assert end_of(hive, second) == ("COMPLETED", "0:0")
    cluster.ssh("sh", "-c", "rm enough; echo 'sleep 15; exit 3' >fails.sh")
    fails = hive.client.detached("--host", "hive", "--profile", "cpu", "--", "sh", "-c", "sh ~/fails.sh")
    never, ever = hive.start("--after", fails), hive.start("--after", f"{fails}:any")
    hive.trains(ever)
    until(lambda: hive.row(never)["state"] == "stopped", "the end of a run that cannot start")
    assert (end_of(hive, fails), end_of(hive, never)[0]) == (("FAILED", "3:0"), "CANCELLED")
    row = hive.row(never)
    assert "the job that it waited for has not ended as asked" in row["evidence"]["service"]
    assert hive.ledger(never) == []
    late = hive.client.run("--host", "hive", "--profile", "cpu", "--after", fails, "--", "true")
    assert (late.returncode, f"{fails} is failed: a run after it would never start" in late.stderr) == (
        3,
        True,
    ), late.stderr


FULL = """if [ -e ~/full ]; then
    echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
    echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)" >&2
    exit 1
fi
exec /usr/bin/sbatch "$@\""""


def test_a_limit_that_passes_is_waited_for(hive, tmp_path):
    """What Slurm says of it is shown, and Ctrl-C leaves nothing."""
    cluster = hive.cluster
    with cluster.logins[0].wrapped("sbatch", FULL):
        cluster.ssh("touch", "full", "enough")
        there = cluster.ssh("ls", ".launch/runs", check=False)
        said = tmp_path / "said"
        for ending in ("Ctrl-C", "passes"):
            with said.open("w") as file:
                started = hive.client.start(*hive.words(), stderr=file)
            until(lambda: "AssocMaxSubmitJobLimit" in said.read_text(), "the limit")
            if ending == "Ctrl-C":
                started.send_signal(signal.SIGINT)
                assert started.wait(timeout=60) == 130, said.read_text()
                assert cluster.ssh("ls", ".launch/runs", check=False) == there
                assert [*hive.client.runs.glob("[0-9]*")] == []
        cluster.ssh("rm", "full")
        assert started.wait(timeout=180) == 0, said.read_text()


def test_a_suspended_job_is_shown_as_such(hive):
    """It neither hangs nor is gone, and it trains on at the step that it had."""
    run = hive.start()
    hive.trains(run, 5)
    job = hive.job(run)
    hive.cluster.controller.enter("scontrol", "suspend", job)
    until(lambda: hive.row(run)["state"] == "suspended", "the state")
    assert f"its job {job} is SUSPENDED on node" in hive.row(run)["evidence"]["service"]
    assert "SUSPENDED" in hive.client.ok("ps", "--host", "hive")
    before = len(hive.ledger(run))
    hive.cluster.controller.enter("scontrol", "resume", job)
    hive.trains(run, before + 5)
    assert hive.row(run)["state"] == "running"
    starts = [line for line in hive.ledger(run) if line.startswith("from")]
    assert len(starts) == 1


def test_a_dry_run_shows_the_script_that_slurm_gets(hive):
    """Each flag of sbatch and each line, but for the end of the run's id, its Python and the agent's file."""
    words = hive.words("--set", "slurm.time=7", "--set", 'slurm.extra=["--hold"]')
    shown = json.loads(hive.client.ok("--dry-run", "--json", *words))["job_script"]
    assert shown.splitlines()[1] in hive.client.ok("--dry-run", *words)
    with hive.cluster.logins[0].wrapped("sbatch", 'printf "%s\\n" "$@" >~/asked; exec /usr/bin/sbatch "$@"'):
        run = hive.client.detached(*words)
    name = re.compile(rf"{re.escape(run)}|YYMMDD-train-xxxxxx")
    short = re.compile(r"train-[a-z0-9]{6}")
    asked = [
        short.sub("train", name.sub("RUN", flag)) for flag in hive.cluster.ssh("cat", "asked").splitlines()
    ]
    flags = [line.removeprefix("#SBATCH ") for line in shown.splitlines() if line.startswith("#SBATCH ")]
    assert [short.sub("train", name.sub("RUN", flag)) for flag in flags] == [
        one for one in asked if one != "--parsable"
    ]
    sent = hive.cluster.ssh("scontrol", "write", "batch_script", hive.job(run), "-")
    where = re.compile(r"python=\S+;|\S+\.pyz")
    lines = [line for line in shown.splitlines() if not line.startswith("#SBATCH ")]
    assert [where.sub("", name.sub("RUN", line)) for line in lines] == [
        where.sub("", name.sub("RUN", line)) for line in sent.strip().splitlines()
    ]


BATCH = """
host = "hive"
profile = "cpu"
[[run]]
name = "first"
command = ["sh", "-c", "sleep 3; echo first >>~/asked; exit 3"]
[[run]]
name = "second"
after = "first"
command = ["sh", "-c", "echo second >>~/asked"]
[[run]]
name = "last"
after = ["first:any"]
command = ["sh", "-c", "echo last >>~/asked"]
"""


def test_an_item_of_a_batch_starts_after_others(hive):
    """By Slurm's own dependencies. The first one fails, so that the second never starts."""
    hive.client.script(BATCH, "ordered.toml")
    done = hive.client.run("batch", "ordered.toml", "--json")
    items = [one for one in map(json.loads, done.stdout.splitlines()) if one["kind"] == "item"]
    ended = {one["name"]: one["state"] for one in items}  # the last of each
    assert ended == {"first": "failed", "second": "stopped", "last": "succeeded"}, done.stdout + done.stderr
    assert hive.cluster.ssh("cat", "asked").split() == ["first", "last"]
