"""Runs that go on at a rented machine, and runs of a rented machine that go on elsewhere, by the stand-in's own account."""

import json
import re
import signal
import subprocess

import pytest
from testbed.client import until
from testbed.rented_walk import ON_RENTED, judge, let_go, lose, moved_to, prepare, waiting
from testbed.two_hosts import killed_after

pytestmark = pytest.mark.slow(reason="each test starts several clients and machines")


@pytest.fixture
def project(lambda_cloud):
    """A project whose training goes on from its checkpoints, and waits at a step for a file."""
    prepare(lambda_cloud)
    return lambda_cloud


def test_a_run_of_this_machine_goes_on_at_a_rented_one(project):
    """The price is shown, the old run is stopped once the machine is there, and the rent ends with the new run."""
    run = waiting(project, "--host", "local")
    seen = project.client.run("recover", run, *ON_RENTED)
    child = moved_to(seen, run)
    (rental,) = project.rentals()
    assert rental.intent.run == child
    assert "at most $7.96 in 4 h" in seen.stderr
    stages = [line.split()[1] for line in seen.stderr.splitlines() if line.lstrip().startswith("✓")]
    assert stages.index("boot") < stages.index("stop") < stages.index("ship")
    assert project.client.summary(run)["state"] == "stopped"
    let_go(project)
    project.client.run("attach", child)
    judge(project, run, child)


@pytest.mark.long
def test_what_is_not_agreed_to_stops_nothing(project):
    """Without a limit, without a yes, without a card that is offered: nothing is rented, and the run goes on where it is."""
    run = waiting(project, "--host", "local")
    for more, asked, words in (
        ({"max_hours": None}, ON_RENTED, "max_hours or max_cost is needed"),
        ({"confirm_above": 1}, ON_RENTED, "more than confirm_above"),
        ({}, ("--host", "rented", "--profile", "mps"), "no type has"),
    ):
        project.table(**more)
        seen = project.client.run("recover", run, *asked)
        assert (seen.returncode, words in seen.stderr) == (3, True), seen.stderr
    assert project.rentals() == ()
    assert project.client.summary(run)["state"] == "running"
    project.table(confirm_above=1)
    child = moved_to(project.client.run("recover", run, *ON_RENTED, "--yes"), run)
    let_go(project)
    project.client.run("attach", child)
    judge(project, run, child)


@pytest.mark.long
@pytest.mark.parametrize("where", ["rented", "local"])
@pytest.mark.parametrize("how", ["preempted", "gone"])
def test_a_machine_that_was_taken_away(project, how, where):
    """Its run goes on from the checkpoint here, at another rented machine or at a host; --abandon is not needed."""
    run = waiting(project, *ON_RENTED)
    project.end_keepers()
    lose(project, how)
    seen = project.client.run("recover", run)
    assert seen.returncode == 4, seen.stderr
    (rental,) = project.rentals()
    assert not rental.is_open
    cost = f"it cost at most ${rental.cents / 100:.2f}"
    assert cost in seen.stderr
    assert f"launch recover {run[-6:]} --host rented" in seen.stderr
    every = project.client.run("recover", "--all")
    assert every.returncode == 1
    assert cost in every.stdout
    assert f"launch recover {run[-6:]} --host rented" in every.stdout
    seen = project.client.run("recover", run, "--host", where)
    child = moved_to(seen, run)
    assert cost in seen.stderr
    assert len(project.rentals()) == (2 if where == "rented" else 1)
    old = project.client.run("attach", run)
    assert (old.returncode, cost in old.stderr) == (4, True), old.stderr
    assert old.stderr.splitlines()[-1].endswith(f"launch attach {child[-6:]}")
    assert "launch recover" not in old.stderr
    let_go(project)
    project.client.run("attach", child)
    old = project.client.run("recover", run, "--host", "rented")
    assert (old.returncode, f"launch attach {child[-6:]}" in old.stderr) == (2, True), old.stderr
    assert "launch recover" not in old.stderr
    judge(project, run, child)
    listed = project.client.ok("ps")
    assert "may still train" not in listed


@pytest.mark.long
def test_a_machine_that_does_not_answer_is_abandoned(project):
    """It is still listed: without --abandon nothing happens; with it the run goes on elsewhere, and its rent is ended."""
    run = waiting(project, *ON_RENTED)
    project.end_keepers()
    lost = lose(project, "silent")
    seen = project.client.run("recover", run, "--host", "local")
    assert seen.returncode == 4
    assert f"launch recover {run[-6:]} --host local --abandon" in seen.stderr
    assert project.ours() == [lost]
    seen = project.client.run("recover", run, "--host", "local", "--abandon")
    child = moved_to(seen, run)
    assert project.ours() == []
    (rental,) = project.rentals()
    assert f"it cost at most ${rental.cents / 100:.2f}" in seen.stderr
    let_go(project)
    project.client.run("attach", child)
    judge(project, run, child)
    assert "may still train" not in project.client.ok("ps")


@pytest.mark.long
@pytest.mark.parametrize("where", ["rented", "local"])
def test_a_run_leaves_a_rented_machine_that_answers(project, where):
    """It is stopped there, and that machine's rent ends once the run goes on elsewhere."""
    run = waiting(project, *ON_RENTED)
    (first,) = project.ours()
    child = moved_to(project.client.run("recover", run, "--host", where), run)
    until(lambda: first not in project.ours(), "the end of the first rent", timeout=60)
    let_go(project)
    project.client.run("attach", child)
    judge(project, run, child)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["rent", "boot", "connect", "stop", "ship", "start"])
def test_a_client_killed_while_it_moves_a_run(project, stage):
    """The same command again ends with one successor; after `launch reconcile` no machine of ours is left over."""
    run = waiting(project, "--host", "local")
    killed_after(project.client.start("recover", run, *ON_RENTED), stage)
    again = project.client.run("recover", run, *ON_RENTED)
    assert again.returncode == 0, again.stderr
    assert project.client.summary(run)["state"] == "stopped"
    child = again.stdout.split()[0]
    project.client.run("reconcile")
    assert len(project.ours()) == 1
    let_go(project)
    project.client.run("attach", child)
    judge(project, run, child)


@pytest.mark.long
def test_ctrl_c_while_it_boots_stops_nothing(project):
    """What was rented is ended, and the run goes on where it is."""
    run = waiting(project, "--host", "local")
    done = []

    def interrupt(line):
        if line["call"] == "instances" and not done:
            done.append(process.send_signal(signal.SIGINT))

    project.service.after = interrupt
    process = project.client.start("recover", run, *ON_RENTED)
    _, said = process.communicate(timeout=180)
    assert process.returncode == 130, said
    assert project.ours() == []
    assert project.client.summary(run)["state"] == "running"
    project.client.ok("stop", "--now", "--yes", run)


@pytest.mark.long
def test_a_successor_whose_machine_dies_before_a_checkpoint_is_here(project):
    """Then the run itself goes on once more, from its own checkpoint."""
    run = waiting(project, "--host", "local")
    first = moved_to(project.client.run("recover", run, *ON_RENTED), run)
    project.end_keepers()
    subprocess.run(["rm", "-rf", project.client.runs / first / "checkpoints"], check=True)
    lose(project, "gone")
    seen = project.client.run("recover", run, *ON_RENTED)
    child = moved_to(seen, run)
    assert child != first
    let_go(project)
    project.client.run("attach", child)
    until(lambda: not project.ours(), "the end of the rent")
    assert (project.client.runs / child / "artifacts" / "weights").is_file()


@pytest.mark.long
def test_a_move_is_looked_at_before_it_is_made(project):
    """`--dry-run` shows the plan and the price, for people and for programs; the run goes on, and nothing is rented."""
    run = waiting(project, "--host", "local")
    looked = ("recover", run, *ON_RENTED, "--dry-run")
    seen = project.client.run(*looked)
    assert seen.returncode == 0, seen.stderr
    assert re.search(r"  rent +gpu_1x_a100 at \$1\.99/h in .*: at most \$7\.96 in 4 h", seen.stdout), (
        seen.stdout
    )
    assert "A100 40 GB" in seen.stderr
    assert f"{run}: without --dry-run it continues from its last checkpoint" in seen.stdout
    (row,) = json.loads(project.client.ok(*looked, "--json").splitlines()[-1])["runs"]
    assert (row["outcome"], row["rental"]["largest_cents"]) == ("planned", 796)
    project.table(confirm_above=0.01)
    assert "more than confirm_above" in project.client.seen(*looked)
    assert (project.service.of("launch"), project.rentals()) == ([], ())
    assert project.client.summary(run)["state"] == "running"
    project.client.ok("stop", "--yes", run)


@pytest.mark.long
def test_what_is_launched_again_is_looked_at_before(project):
    """`launch rerun --dry-run` shows what a launch would, with its price, and what its plan has otherwise."""
    run = waiting(project, "--host", "local")
    looked = ("rerun", run, *ON_RENTED, "--dry-run")
    seen = project.client.ok(*looked)
    assert "the checks pass; nothing was rented or sent" in seen
    assert "at most $7.96 in 4 h" in seen
    assert re.search(rf"differs from {run[-6:]}: .*host local → rented", seen), seen
    found = json.loads(project.client.ok(*looked, "--json"))
    assert (found["kind"], found["rental"]["largest_cents"]) == ("preview", 796)
    assert (project.service.of("launch"), len([*project.client.runs.glob("2*")])) == ([], 1)
    project.client.ok("stop", "--yes", run)
