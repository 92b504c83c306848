"""The API key stays here also where a run goes on: on its machine, or with a move that is taken up again."""

import pytest
from testbed.client import until
from testbed.lambda_cloud import KEY
from testbed.rented_walk import JOB, ON_RENTED, WAITS_AT, prepare, steps, waiting
from testbed.two_hosts import killed_after

pytestmark = pytest.mark.slow(reason="each test starts several clients and a machine")
REFUSED = "which opens the whole account and is never sent to a machine"


@pytest.fixture
def project(lambda_cloud):
    """A project whose training has a secret."""
    prepare(lambda_cloud)
    (lambda_cloud.client.project / "job.toml").write_text(
        JOB.replace("[batch]", 'secrets = ["TOKEN"]\n[batch]')
    )
    lambda_cloud.client.variables["TOKEN"] = "a harmless one"
    return lambda_cloud


def is_on_a_machine(project):
    """Whether the key lies anywhere in a home of a machine, or in the variables of a process there."""
    return any(
        KEY.encode() in path.read_bytes()
        for machine in project.instances.machines.values()
        for path in machine.homes.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def with_key(project):
    """Write the key into a file, as the run's secret."""
    (project.client.project / "my.env").write_text(f"TOKEN={KEY}\n")
    return ("--env-file", "my.env")


@pytest.mark.long
def test_a_move_that_is_taken_up_again_takes_no_key_along(project):
    """Its machine is rented already, and known by an address of its own."""
    run = waiting(project, "--host", "local")
    killed_after(project.client.start("recover", run, *ON_RENTED), "ship")
    seen = project.client.run("recover", run, *ON_RENTED, *with_key(project))
    assert (seen.returncode, REFUSED in seen.stderr) == (2, True), seen.stderr
    assert not is_on_a_machine(project)
    assert len(steps(project)) == WAITS_AT - 1
    assert KEY not in seen.stdout + seen.stderr


def test_a_run_that_goes_on_at_its_machine_gets_no_key(project):
    """The machine was booted anew, and asks for the run's secrets again."""
    run = waiting(project, *ON_RENTED)
    project.end_keepers()
    machine = project.instances.newest
    machine.kill()
    for path in (machine.homes / "ubuntu" / ".launch" / "runs" / run).rglob("secrets*"):
        path.unlink()  # as a host that keeps them in memory has lost them
    project.instances.boot(machine)
    until(lambda: project.client.summary(run)["state"] in ("interrupted", "waiting"), "its interruption")
    seen = project.client.run("recover", run, *with_key(project))
    assert (seen.returncode, REFUSED in seen.stderr) == (2, True), seen.stderr
    assert not is_on_a_machine(project)
    assert len(steps(project)) == WAITS_AT - 1
