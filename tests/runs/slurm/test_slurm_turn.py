"""What a run says of the jobs before it while it waits on a real cluster, and how often that is asked."""

from __future__ import annotations

import json
import time

import pytest
from runs.slurm.test_slurm_verbs import COUNTED, Hive, timed_ps
from testbed.client import until
from testbed.kept import CLEAR_ROOT

pytestmark = pytest.mark.testbed
SILENT = """
case "$*" in *--all*) exec sleep 600;; esac
exec /usr/bin/squeue "$@"
"""


@pytest.fixture
def hive(client, slurm):
    """A client of the cluster, whose nodes bob has; two jobs of his wait too, and others that are before nobody."""
    slurm.ssh("sh", "-c", f"rm -rf enough deaf; {CLEAR_ROOT}")
    holder = slurm.submit("sleep 600", "--nodes=2", "--exclusive", "--output=/dev/null", user="bob")
    slurm.until_state(holder, "RUNNING")
    made = Hive(client, slurm)
    made.before = [slurm.submit("sleep 600", "--output=/dev/null", user="bob") for _ in range(2)]
    for flags in ("--hold", "--begin=now+1hour", "--partition=spare"):
        slurm.submit("true", flags, "--output=/dev/null", user="bob")
    return made


def said(hive, run):
    """What `ps` says of a run that waits."""
    row = hive.row(run)
    assert row["state"] == "reserved"
    return row["evidence"]["service"].partition(", to start about")[0]


def until_said(hive, run, words):
    """Wait until it says that: Slurm gives a reason once it has looked at the job."""
    until(lambda: said(hive, run).endswith(words), words, 30)


def test_a_run_that_waits_says_how_many_jobs_are_before_it(hive):
    """Until nobody is, and not where the cluster shows nobody the jobs of others."""
    run = hive.start("--set", 'slurm.gres="gpu:a100:2"')
    until_said(hive, run, "waits for 2 x a100, 2 before it")
    hive.cluster.ssh("scancel", hive.before[0], user="bob")
    until_said(hive, run, "waits for 2 x a100, 1 before it")
    with hive.cluster.configured(PrivateData="jobs"):
        # A cluster that has read its settings anew looks at its queue anew: either reason is one.
        assert said(hive, run).endswith(("waits for the jobs before it", "waits for 2 x a100"))
    hive.cluster.ssh("scancel", hive.before[1], user="bob")
    until_said(hive, run, "waits for 2 x a100")


@pytest.mark.long
def test_the_whole_queue_is_asked_for_once_in_half_a_minute(hive):
    """By one who follows a run, who asks for the user's own jobs all the time."""
    run = hive.start()
    until_said(hive, run, "waits for free nodes, 2 before it")
    hive.cluster.ssh("rm", "-f", "squeues")
    with hive.cluster.logins[0].wrapped("squeue", COUNTED):
        follower = hive.client.start("attach", run, "--json")
        until(lambda: len(questions(hive, "--me")) >= 5, "five questions", 30)
        assert len(questions(hive, "--all")) == 1
        follower.terminate()
        out, _ = follower.communicate(timeout=180)
    assert "2 before it" in out


def questions(hive, flag):
    """The questions that the queue was asked with a flag."""
    lines = hive.cluster.ssh("cat", "squeues", check=False).splitlines()
    return [line for line in lines if f" {flag} " in line]


@pytest.mark.long
def test_a_queue_that_is_too_long_for_an_answer_delays_and_fails_nothing(hive):
    """The run's own job is judged as ever."""
    run = hive.start()
    alone, _ = timed_ps(hive)
    with hive.cluster.logins[0].wrapped("squeue", SILENT):
        until_said(hive, run, "waits for the jobs before it")
        began = time.monotonic()
        rows = json.loads(hive.client.ok("ps", "--json", "--host", "hive"))["runs"]
        assert time.monotonic() - began < 10 * alone
        assert [row["state"] for row in rows] == ["reserved"]
