"""What somebody did to break runs on a Slurm cluster, and how they hold now; judged by Slurm's own programs."""

from __future__ import annotations

import json
import time

import pytest
from runs.slurm.test_slurm_verbs import LATER, Hive
from testbed.client import until

pytestmark = pytest.mark.testbed

UNKNOWN = """case "$*" in *"show job"*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;; esac
exec /usr/bin/scontrol "$@\""""


@pytest.fixture
def hive(client, slurm_for_all):
    """A client of the cluster that has nothing on it; the jobs of its runs are ended afterwards, and no others."""
    slurm_for_all.ssh("rm", "-rf", "enough", "deaf")
    made = Hive(client, slurm_for_all)
    yield made
    made.end_jobs()


def put_job_on_record(hive, run, job):
    """Let a run have this number for its job, as after a controller that lost its state, and gives numbers again."""
    record = f".launch/runs/{run}/control/slurm.json"
    known = json.loads(hive.cluster.ssh("cat", record))
    hive.cluster.ssh("sh", "-c", f"echo '{json.dumps({**known, 'jobs': [job]})}' >{record}")


@pytest.mark.long
@pytest.mark.parametrize(
    "words", [("stop",), pytest.param(("stop", "--now"), marks=pytest.mark.long)], ids=" ".join
)
def test_a_number_that_another_job_has_now(hive, words):
    """It is not the run's job, and nobody cancels it; the run is not shown as what that job is."""
    run = hive.start(*LATER)
    hive.cluster.ssh("scancel", hive.job(run))
    mine = hive.cluster.submit("sleep 600", "--output=/dev/null")
    hive.cluster.until_state(mine, "RUNNING")
    put_job_on_record(hive, run, mine)
    row = hive.row(run)
    assert (row["state"], row["reason"]) == ("failed", "never-started")
    assert row["evidence"]["service"].startswith(f"Slurm has forgotten its job {mine}; ")
    hive.client.run(*words, run)
    assert hive.cluster.state(mine) == "RUNNING"
    hive.cluster.ssh("scancel", mine)


@pytest.mark.long
def test_a_job_whose_comment_its_cluster_has_changed(hive):
    """It is the run's all the same, by its name: some clusters write comments of their own."""
    run = hive.start(*LATER)
    job = hive.job(run)
    hive.cluster.ssh("scontrol", "update", f"JobId={job}", "Comment=billed")
    assert hive.row(run)["state"] == "reserved"
    assert "stopped: by-user" in hive.client.ok("stop", run)
    assert hive.cluster.state(job) == "CANCELLED"


@pytest.mark.long
def test_a_job_that_its_user_has_given_another_name_and_comment(hive):
    """It is the run's all the same, by its folder: it trains, and nobody starts a second one beside it."""
    run = hive.start()
    hive.trains(run)
    job = hive.job(run)
    hive.cluster.ssh("scontrol", "update", f"JobId={job}", "JobName=mine", "Comment=hello")
    assert hive.row(run)["state"] == "running"
    hive.client.run("recover", run)
    assert hive.job(run) == job
    assert "stopped: by-user" in hive.client.ok("stop", run)
    assert hive.cluster.state(job) in ("COMPLETED", "CANCELLED")


@pytest.mark.long
def test_a_signal_before_the_agent(hive):
    """A job that is told before its script has become the agent goes on: the signal would have ended it as failed."""
    slow = "module() { touch $HOME/loading; until [ -e $HOME/told ]; do sleep 0.1; done; sleep 1; }\n"
    for node in hive.cluster.nodes:
        (node.folder / "etc" / "profile.d" / "slow.sh").write_text(slow)
    try:
        hive.cluster.ssh("rm", "-f", "loading", "told")
        run = hive.start("--set", 'slurm.modules=["cuda/12.4"]')
        until(lambda: hive.cluster.ssh("ls", "loading", check=False), "its modules to load")
        hive.cluster.ssh("scancel", "--batch", "--signal=USR1", hive.job(run))
        hive.cluster.ssh("touch", "told")
        hive.trains(run)
        assert [state for _, state in hive.jobs(run)] == ["RUNNING"]
    finally:
        for node in hive.cluster.nodes:
            (node.folder / "etc" / "profile.d" / "slow.sh").unlink()


@pytest.mark.long
def test_a_queue_that_lacks_a_job_that_runs(hive):
    """As by a site's own program that is behind: who follows the run, or looks at it, sees that it trains, in the same job."""
    run = hive.start()
    hive.trains(run)
    job = hive.job(run)
    with hive.cluster.logins[0].wrapped("squeue", "exit 0"):
        assert hive.row(run)["state"] == "running"
        follower = hive.client.start("attach", run, "--json")
        until(lambda: '"metric"' in follower.stdout.readline(), "a step")
        follower.terminate()
        follower.communicate(timeout=180)
    assert hive.jobs(run) == [(job, "RUNNING")]


@pytest.mark.long
def test_accounting_that_hears_of_an_end_late(hive):
    """Who follows the run hears of it too: accounting is asked again about a job that had not ended by it."""
    run = hive.start(*LATER)
    job = hive.job(run)
    login = hive.cluster.logins[0]
    forgotten = (login.wrapped("squeue", "exit 0"), login.wrapped("scontrol", UNKNOWN))
    with forgotten[0], forgotten[1], login.wrapped("sacct", "cat $HOME/said"):
        hive.cluster.ssh("sh", "-c", f"echo '{job}|RUNNING|0:0|None|node1' >said")
        follower = hive.client.start("attach", run, "--json")
        until(lambda: "by accounting, and not in the queue" in follower.stdout.readline(), "what sacct says")
        hive.cluster.ssh("sh", "-c", f"echo '{job}|CANCELLED by 20001|0:0|None|node1' >said")
        out, err = follower.communicate(timeout=180)
        assert "cancelled-in-slurm" in out + err


@pytest.mark.long
def test_a_login_with_variables_of_slurm(hive):
    """As in a shell of `salloc`, or one where somebody has tried something: the job and what runs beside it know none of them."""
    hive.cluster.ssh(
        "sh", "-c", "echo 'export SLURM_DEBUG=2 SLURM_HINT=nomultithread SBATCH_NO_KILL=1' >.bashrc"
    )
    try:
        run = hive.start()
        hive.trains(run)
        seen = hive.client.ok("exec", run, "--", "env").splitlines()
        assert f"SLURM_JOB_ID={hive.job(run)}" in seen
        assert not [line for line in seen if line.startswith(("SLURM_DEBUG", "SLURM_HINT", "SBATCH_"))]
    finally:
        hive.cluster.ssh("rm", ".bashrc")


@pytest.mark.long
def test_the_secrets_of_a_run_whose_job_was_cancelled(hive):
    """They are erased as at any end, once anybody has looked: no agent of the run has begun that would do it."""
    job = 'name = "t"\ncommand = ["python", "train.py"]\nsecrets = ["HF_TOKEN"]\n'
    (hive.client.project / "t.toml").write_text(job)
    hive.client.variables["HF_TOKEN"] = "hf_of_nobody_12345678"
    run = hive.client.detached("--host", "hive", "--profile", "cpu", *LATER, "--job", "t.toml")
    held = ("grep", "-rl", "hf_of_nobody", f".launch/runs/{run}")
    assert hive.cluster.ssh(*held)
    hive.cluster.ssh("scancel", hive.job(run))
    row = hive.row(run)
    assert (row["state"], row["reason"]) == ("stopped", "cancelled-in-slurm")
    assert not hive.cluster.ssh(*held, check=False)


@pytest.mark.long
def test_a_job_that_is_requeued_while_its_run_stops(hive):
    """It is taken out of the queue soon, and not after the grace that a training would have."""
    hive.cluster.ssh("touch", "deaf")
    run = hive.start("--set", "stop_grace_s=600")
    hive.trains(run)
    stop = hive.client.start("stop", run)
    until(lambda: hive.row(run)["state"] == "stopping", "the run to stop")
    hive.cluster.ssh("scontrol", "requeue", hive.job(run), login=1)
    out, err = stop.communicate(timeout=180)
    assert "stopped: by-user" in out, out + err
    assert [state for _, state in hive.jobs(run)] == ["CANCELLED"]


@pytest.mark.long
@pytest.mark.parametrize("partition", ["short", "short,batch"])
def test_a_grace_that_is_longer_than_a_partition_allows_a_job(hive, partition):
    """The job is told in the middle of its time: told earlier than it may run, it would be told as it begins, each time."""
    words = ("--set", f"slurm.partition={partition}", "--set", "stop_grace_s=700")
    with hive.cluster.logins[0].wrapped("sbatch", 'echo "$@" >$HOME/asked; exec /usr/bin/sbatch "$@"'):
        hive.start(*LATER, *words)
    assert "--signal=B:USR1@300" in hive.cluster.ssh("cat", "asked").split()


ALONE = """
import os, time
print("began", flush=True)
while not os.path.exists(os.path.expanduser("~/enough")):
    time.sleep(0.1)
"""


@pytest.mark.long
@pytest.mark.parametrize("ends", ["in time", "by Slurm"])
def test_a_script_that_cannot_go_on_has_all_of_its_time(hive, ends):
    """To be told early would only cost it what it has trained: it ends by itself, or Slurm ends it at its limit."""
    hive.client.script(ALONE)
    run = hive.start()
    log = f".launch/runs/{run}/record/0002/log.txt"
    until(lambda: "began" in hive.cluster.ssh("cat", log, check=False), "its start")
    hive.cluster.ssh("scancel", "--batch", "--signal=USR1", hive.job(run))
    time.sleep(2)  # an agent that heeds the signal has ended the script by then
    assert hive.row(run)["state"] == "running"
    if ends == "in time":
        hive.cluster.ssh("touch", "enough")
    else:
        hive.cluster.ssh("scancel", "--signal=TERM", f"{hive.job(run)}.0")
    until(lambda: hive.row(run)["ended"], "its end")
    row = hive.row(run)
    if ends == "in time":
        assert (row["state"], row["attempt"]) == ("succeeded", 1)
    else:
        assert (row["state"], row["attempt"]) == ("failed", 1)
        assert row["reason"] in (
            "not-restartable",
            "preempted",
        )  # the script may die before its agent hears of it
    until(
        lambda: not [state for _, state in hive.jobs(run) if state in ("RUNNING", "PENDING")], "its job's end"
    )


@pytest.mark.long
def test_a_script_that_begins_anew_at_each_end_of_its_job_is_given_up(hive):
    """It would never end: one start that got no further than the first is enough, and it has all of its time."""
    hive.client.script(
        "import time\nfor step in range(1, 4):\n    print('step', step, 'loss', 1.0, flush=True)\ntime.sleep(600)\n"
    )
    run = hive.start("--set", "restart=true")
    job = hive.job(run)
    for start in (1, 2):
        log = f".launch/runs/{run}/record/{start + 1:04}/log.txt"
        until(lambda log=log: "step 3" in hive.cluster.ssh("cat", log, check=False), f"start {start}")
        hive.cluster.ssh("scancel", "--batch", "--signal=USR1", job)
        if start == 1:
            hive.cluster.until_state(job, "PENDING", timeout=60)
            hive.cluster.start_now(job)
    time.sleep(2)  # an agent that heeds the signal has ended the script by then
    assert hive.row(run)["state"] == "running"
    hive.cluster.ssh("scancel", "--signal=TERM", f"{job}.0")  # as Slurm does at the limit
    until(lambda: hive.row(run)["ended"], "its end")
    row = hive.row(run)
    assert (row["state"], row["reason"], row["attempt"]) == ("failed", "no-progress", 2)
    assert "node minute" in row["evidence"]["why"]


OF_A_SITE = """for word do
    shift
    case $word in --parsable) continue;; --comment=*) word=--comment=billed;; --job-name=*) word=--job-name=site;; esac
    set -- "$@" "$word"
done
job=$(/usr/bin/sbatch --parsable "$@")
{then}
"""
"""An `sbatch` that names jobs as its site wishes."""
BANNER = 'echo "Welcome to hive: 3 of 9 projects are yours"; echo "Submitted batch job $job"; echo "93.5 of 1000 hours used"'
UNTIL_ITS_END = "until /usr/bin/squeue -h -t COMPLETED -j $job -o %i | grep -q .; do sleep 0.1; done"
TRAINED = """
import os
with open(os.path.expanduser("~/ledger-" + os.environ["LAUNCH_RUN"]), "a") as file:
    file.write("trained\\n")
with open(os.path.join(os.environ["LAUNCH_ARTIFACTS"], "weights"), "w") as file:
    file.write("all of it")
"""


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(f"{UNTIL_ITS_END}; {BANNER}", marks=pytest.mark.long),
        f"{UNTIL_ITS_END}; exit 1",
        pytest.param("kill -9 $$", marks=pytest.mark.long),
    ],
)
def test_a_run_that_has_begun_is_never_taken_back(hive, then):
    """Its job bears no sign of it, and has ended before `sbatch` gives an answer, or has none: it stays, with what it made."""
    hive.client.script(TRAINED)
    with hive.cluster.logins[0].wrapped("sbatch", OF_A_SITE.format(then=then)):
        run = hive.start()
    until(lambda: hive.row(run)["ended"], "its end")
    row = hive.row(run)
    assert (row["state"], row["attempt"]) == ("succeeded", 1)
    assert hive.ledger(run) == ["trained"]
    assert hive.cluster.ssh("cat", f".launch/runs/{run}/work/artifacts/weights") == "all of it"


@pytest.mark.parametrize("blind", ["squeue", pytest.param("scontrol", marks=pytest.mark.long)])
def test_a_job_that_waits_under_another_name_is_found(hive, blind):
    """By the number that its `sbatch` prints among others where the queue is behind, and by its folder."""
    login = hive.cluster.logins[0]
    with login.wrapped("sbatch", OF_A_SITE.format(then=BANNER)), login.wrapped(blind, "exit 0"):
        run = hive.start(*LATER)
    (job,) = hive.cluster.ssh("squeue", "--me", "-h", "--name=site", "-o", "%i").split()
    assert hive.job(run) == job
    assert hive.row(run)["state"] == "reserved"
    hive.client.ok("stop", run)
    assert hive.cluster.state(job) == "CANCELLED"
