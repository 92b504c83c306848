"""Checkpoints of a run on a rented machine, which are home before it ends: nothing can be fetched from one that is gone."""

import pytest
from testbed.client import until
from testbed.rented_walk import ON_RENTED, STEPS, WAITS_AT, let_go, prepare, steps

TRAINER = """
import json, os, sys
for step in (5, 10, 12):
    folder = f"out/checkpoint-{step}"
    os.makedirs(folder)
    open(folder + "/model.safetensors", "w").write(str(step) * 100)
    if step < 12: json.dump({"global_step": step}, open(folder + "/trainer_state.json", "w"))
sys.exit("fail" in sys.argv)
"""


@pytest.fixture
def project(lambda_cloud):
    """A project whose training writes checkpoints."""
    prepare(lambda_cloud)
    job = lambda_cloud.client.project / "job.toml"
    job.write_text(job.read_text().replace('checkpoints = "pull"\n', ""))
    return lambda_cloud


def waiting(project):
    """Launch, and return the run once it waits at its step; no checkpoint is here then."""
    run = project.client.detached(*ON_RENTED, "--job", "job.toml")
    until(lambda: len(steps(project)) == WAITS_AT - 1, "its first steps", timeout=60)
    assert not [*project.client.runs.glob("*/checkpoints/*")]
    return run


def checkpoints(project):
    project.until_left()
    (rental,) = project.rentals()
    assert (rental.state, project.ours()) == ("ended", [])
    return sorted(
        path.parent.name for path in project.client.runs.glob(f"{rental.intent.run}/checkpoints/*/weights")
    )


def check_words(said, *older):
    """What is lost is named, and nothing is said to stay, nor how to fetch it from a machine that is gone."""
    assert "stay on" not in said
    assert "launch pull" not in said
    (line,) = [line for line in said.splitlines() if "older checkpoints are lost" in line]
    assert [name for name in older if name not in line] == []


@pytest.mark.long
def test_the_newest_checkpoint_of_a_run_that_succeeded_comes_home(project):
    """The others are said to be lost."""
    let_go(project)
    said = project.client.seen(*ON_RENTED, "--job", "job.toml")
    assert checkpoints(project) == [f"step-{STEPS}"]
    check_words(said, f"checkpoints/step-{STEPS - 1}")


@pytest.mark.long
def test_the_newest_checkpoint_of_a_run_that_was_stopped_comes_home(project):
    """By the process that follows it."""
    run = waiting(project)
    done = project.client.run("stop", "--yes", run)
    assert done.returncode == 0, done.stderr
    project.until_gone()
    assert checkpoints(project) == [f"step-{WAITS_AT - 1}"]


@pytest.mark.long
def test_the_newest_checkpoint_of_a_run_whose_time_is_up_comes_home(project):
    """Its machine is ended although it goes on."""
    waiting(project)
    project.clock.sleep(5 * 3600)
    project.until_gone()
    assert checkpoints(project) == [f"step-{WAITS_AT - 1}"]


@pytest.mark.long
@pytest.mark.parametrize("end", ["succeed", "fail"])
def test_the_folders_of_a_trainer_come_home(project, end):
    """They may be all that it has made; none is said to stay."""
    project.client.script(TRAINER)
    done = project.client.run(*ON_RENTED, "--", "python3", "train.py", end)
    assert done.returncode == (end == "fail")
    (rental,) = project.rentals()
    out = project.client.runs / rental.intent.run / "outputs" / "out"
    found = {path.parent.name: path.read_text() for path in out.glob("*/model.safetensors")}
    assert found == {f"checkpoint-{number}": str(number) * 100 for number in (5, 10, 12)}
    assert "stay on" not in done.stderr
    assert "launch pull" not in done.stderr
    assert "older checkpoints are lost" not in done.stderr


MANY = """
import os
for step in range(1, 13):
    os.makedirs(f"out/checkpoint-{step}")
    open(f"out/checkpoint-{step}/model.safetensors", "w").write("w")
"""


@pytest.mark.long
def test_the_home_line_names_a_few_of_many_checkpoints(project):
    """All of them came; the newest are named, and how many more there are."""
    project.client.script(MANY)
    said = project.client.seen(*ON_RENTED, "--", "python3", "train.py")
    project.until_left()
    assert len([*project.client.runs.glob("*/outputs/out/checkpoint-*/model.safetensors")]) == 12
    (line,) = [line for line in said.splitlines() if "✓ home" in line]
    assert "out/checkpoint-12 and 4 more: 12 files" in line
    assert [step for step in range(1, 13) if f"out/checkpoint-{step}," in line] == [*range(5, 12)]
