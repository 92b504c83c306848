"""Runs that go on at a rented machine, and runs of a rented machine that go on elsewhere, by the stand-in's own account.

A training writes each step into a file of its user's home: by that, no step is lost, and none is trained twice.
"""

import signal
import subprocess

import pytest
from testbed.client import until
from testbed.two_hosts import killed_after

pytestmark = pytest.mark.slow(reason="each test starts several clients and machines")

STEPS = 8
WAITS_AT = 4
TRAIN = f"""
import os, time
import launcher_worker as worker
found = worker.resume_from()
plan = worker.knobs()
weight = float(open(os.path.join(found, "weights")).read()) if found else 1.0
first = int(found.rsplit("-", 1)[1]) + 1 if found else 1
home = os.path.expanduser("~")
for step in range(first, {STEPS} + 1):
    while step == {WAITS_AT} and not os.path.exists(home + "/go") and not worker.stopping():
        time.sleep(0.05)
    if worker.stopping(): raise SystemExit(0)
    weight = weight * 0.9 + plan.split.global_batch * step
    with open(home + "/steps", "a") as file:
        print(plan.run, step, repr(weight), file=file)
    worker.log(step, loss=weight)
    worker.save(step, lambda folder: open(os.path.join(folder, "weights"), "w").write(repr(weight)))
open(os.path.join(plan.artifacts, "weights"), "w").write(repr(weight))
worker.done({STEPS})
"""
JOB = f"""
name = "walk"
command = ["python3", "train.py"]
steps = {STEPS}
save_every_steps = 1
checkpoints = "pull"
[batch]
global = 4
"""
ON_RENTED = ("--host", "rented", "--profile", "a100_40gb")


@pytest.fixture
def project(lambda_cloud):
    """A project whose training goes on from its checkpoints, and waits at a step for a file."""
    lambda_cloud.client.script(TRAIN)
    (lambda_cloud.client.project / "job.toml").write_text(JOB)
    return lambda_cloud


def homes(project):
    """The homes in which steps are written, on this machine and on the instances."""
    return [project.client.home, *(one.homes / "ubuntu" for one in project.instances.machines.values())]


def steps(project):
    """(run, step, weight) of all steps, in the order of the machines, then of time."""
    texts = [(home / "steps").read_text() for home in homes(project) if (home / "steps").exists()]
    return [tuple(line.split()) for text in texts for line in text.splitlines()]


def let_go(project):
    """Let whatever waits go on, wherever it is, also on machines that boot later."""
    (project.client.home / "go").touch()
    for home in homes(project)[1:]:
        if home.is_dir():
            (home / "go").touch()


def waiting(project, *words):
    """Launch, and return the run once it waits at its step with a checkpoint here."""
    done = project.client.run("--detach", *words, "--job", "job.toml")
    assert done.returncode == 0, done.stderr
    (run,) = [path.name for path in project.client.runs.glob("2*")]
    until(lambda: len(steps(project)) == WAITS_AT - 1, "its first steps", timeout=60)
    project.client.ok("pull", run, "--checkpoint", "last")
    return run


def moved_to(seen, run):
    """The run that goes on with one, as `launch recover` says it."""
    assert seen.returncode == 0, seen.stderr
    (line,) = [line for line in seen.stdout.splitlines() if " goes on from step " in line]
    assert line.split(" goes on from step ")[1].split("   ")[0] == f"{WAITS_AT - 1} of {run}"
    return line.split()[0]


def judge(project, run, child):
    """No step was trained twice or left out, and the last weights are those of an unbroken run; nothing is rented."""
    trained = steps(project)
    assert sorted((int(step), by) for by, step, _ in trained) == [
        (step, run if step < WAITS_AT else child) for step in range(1, STEPS + 1)
    ]
    weight = 1.0
    for step in range(1, STEPS + 1):
        weight = weight * 0.9 + 4 * step
    assert {int(step): text for _, step, text in trained}[STEPS] == repr(weight)
    assert (project.client.runs / child / "artifacts" / "weights").read_text() == repr(weight)
    project.until_gone()
    until(lambda: not project.keepers(), "the end of what looks after rentals")
    assert not [rental for rental in project.rentals() if rental.is_open]
    assert project.service.state.violations == []


def lose(project, how):
    """Let the newest machine die: taken away by the provider, ended by somebody, or only dead while it is still listed."""
    (one,) = project.service.alive()
    if how == "preempted":
        one.status = "preempted"
    elif how == "gone":
        one.gone = project.clock.now()
    project.instances.end(one)
    return one.id


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
    let_go(project)
    project.client.run("attach", child)
    judge(project, run, child)
    listed = project.client.ok("ps")
    assert "may still train" not in listed


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


def test_ctrl_c_while_it_boots_stops_nothing(project):
    """What was rented is ended, and the run goes on where it is."""
    run = waiting(project, "--host", "local")
    done = []

    def interrupt(line):
        if line["call"] == "instances" and not done:
            done.append(process.send_signal(signal.SIGINT))

    project.service.after = interrupt
    process = project.client.start("recover", run, *ON_RENTED)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert project.ours() == []
    assert project.client.summary(run)["state"] == "running"
    project.client.ok("stop", "--now", "--yes", run)


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
