"""A training that goes on from its checkpoints, on this machine and on rented ones; it waits at a step for a file.

It writes each step into a file of its user's home: by that, no step is left out, and none is trained twice.
"""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

from testbed.client import until
from testbed.lambda_cloud import LambdaCloud

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
for step in range(first, plan.steps + 1):
    while step == {WAITS_AT} and not os.path.exists(home + "/go") and not worker.stopping():
        time.sleep(0.05)
    if worker.stopping(): raise SystemExit(0)
    weight = weight * 0.9 + plan.split.global_batch * step
    with open(home + "/steps", "a") as file:
        print(plan.run, step, repr(weight), file=file)
    worker.log(step, loss=weight)
    worker.save(step, lambda folder: open(os.path.join(folder, "weights"), "w").write(repr(weight)))
open(os.path.join(plan.artifacts, "weights"), "w").write(repr(weight))
worker.done(plan.steps)
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


def prepare(project: LambdaCloud) -> None:
    """Write the script and the job."""
    project.client.script(TRAIN)
    (project.client.project / "job.toml").write_text(JOB)


def homes(project: LambdaCloud) -> list[Path]:
    """Return the homes in which steps are written, on this machine and on the instances."""
    return [project.client.home, *(one.homes / "ubuntu" for one in project.instances.machines.values())]


def steps(project: LambdaCloud) -> list[tuple[str, ...]]:
    """Return (run, step, weight) of all steps, in the order of the machines, then of time."""
    texts = [(home / "steps").read_text() for home in homes(project) if (home / "steps").exists()]
    return [tuple(line.split()) for text in texts for line in text.splitlines()]


def let_go(project: LambdaCloud) -> None:
    """Let whatever waits go on, wherever it is, also on machines that boot later."""
    project.instances.files.add("go")
    (project.client.home / "go").touch()
    for home in homes(project)[1:]:
        if home.is_dir():
            (home / "go").touch()


def waiting(project: LambdaCloud, *words: str) -> str:
    """Launch, and return the run once it waits at its step with a checkpoint here."""
    done = project.client.run("--detach", *words, "--job", "job.toml")
    assert done.returncode == 0, done.stderr
    (run,) = [path.name for path in project.client.runs.glob("2*")]
    until(lambda: len(steps(project)) == WAITS_AT - 1, "its first steps", timeout=60)
    project.client.ok("pull", run, "--checkpoint", "last")
    return run


def moved_to(seen: CompletedProcess[str], run: str) -> str:
    """Return the run that goes on with one, as `launch recover` says it."""
    assert seen.returncode == 0, seen.stderr
    (line,) = [line for line in seen.stdout.splitlines() if " continues from step " in line]
    assert line.split(" continues from step ")[1].split("   ")[0] == f"{WAITS_AT - 1} of {run}"
    return line.split()[0]


def judge(project: LambdaCloud, run: str, child: str) -> None:
    """Check that no step was trained twice or left out, that the last weights are those of an unbroken run, and nothing is rented."""
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
    project.until_left()
    assert not [rental for rental in project.rentals() if rental.is_open]
    assert project.service.state.violations == []


def lose(project: LambdaCloud, how: str) -> str:
    """Let the newest machine die: taken away by the provider, ended by somebody, or only dead while it is still listed."""
    (one,) = project.service.alive()
    if how == "preempted":
        one.status = "preempted"
    elif how == "gone":
        one.gone = project.clock.now()
    project.instances.end(one)
    return one.id
