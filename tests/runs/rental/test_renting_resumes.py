"""New runs that go on from ended ones at rented machines, and runs that are launched again there, by the stand-in's account."""

import contextlib

import pytest
from testbed.client import until
from testbed.rented_walk import ON_RENTED, STEPS, WAITS_AT, let_go, prepare, steps, waiting

pytestmark = pytest.mark.slow(reason="each test starts several clients and machines")

MORE = STEPS + 3


@pytest.fixture
def project(lambda_cloud):
    """A project whose training goes on from its checkpoints, and waits at a step for a file."""
    prepare(lambda_cloud)
    return lambda_cloud


def stopped(project, *words):
    """A run that was stopped in the middle of its work, with its files here."""
    run = waiting(project, *words)
    project.client.ok("stop", "--yes", run)
    return run


def nothing_left(project):
    """No machine is rented, and no process looks after one."""
    project.until_gone()
    project.until_left()
    assert not [rental for rental in project.rentals() if rental.is_open]
    assert project.service.state.violations == []


def test_a_run_whose_machine_is_gone_is_resumed_at_another(project):
    """Without a host it says what the machine cost and what to type; that rents another one, and ends it."""
    run = stopped(project, *ON_RENTED)
    nothing_left(project)
    (first,) = project.rentals()
    seen = project.client.run("resume", run)
    assert seen.returncode == 4
    assert f"it cost at most ${first.cents / 100:.2f}" in seen.stderr
    assert f"launch resume {run[-6:]} --host rented" in seen.stderr
    let_go(project)
    done = project.client.run("resume", run, "--host", "rented", "--set", f"steps={MORE}")
    assert done.returncode == 0, done.stderr
    assert "at most $7.96 in 4 h" in done.stderr
    child = project.rentals()[1].intent.run
    assert [(by, int(step)) for by, step, _ in steps(project)] == [
        *((run, step) for step in range(1, WAITS_AT)),
        *((child, step) for step in range(WAITS_AT, MORE + 1)),
    ]
    nothing_left(project)
    again = project.client.run("resume", child, "--host", "rented")
    assert (again.returncode, "has succeeded" in again.stderr) == (2, True)
    again = project.client.run("resume", child, "--host", "rented", "--set", "steps=4")
    assert (again.returncode, "nothing is left to do" in again.stderr) == (2, True)
    assert len(project.rentals()) == 2


@pytest.mark.long
def test_a_run_of_this_machine_is_resumed_at_a_rented_one(project):
    """Who detaches leaves a keeper; the new run has the old one as its parent."""
    run = stopped(project, "--host", "local")
    let_go(project)
    done = project.client.run("resume", run, *ON_RENTED, "--detach")
    assert done.returncode == 0, done.stderr
    (rental,) = project.rentals()
    child = rental.intent.run
    assert done.stdout.split() == [child]
    assert "downloads its files, then terminates the machine" in done.stderr
    nothing_left(project)
    shown = project.client.summary(child)
    assert (shown["state"], shown["parent"]["run"], shown["parent"]["step"]) == (
        "succeeded",
        run,
        WAITS_AT - 1,
    )


@pytest.mark.long
def test_a_kept_machine_takes_the_run_that_goes_on_with_its_own(project):
    """Nothing else is rented; the rent is the new run's, and its limit the old one."""
    project.table(keep=True)
    run = stopped(project, *ON_RENTED)
    (instance,) = project.ours()
    let_go(project)
    done = project.client.run("resume", run, "--set", f"steps={MORE}")
    assert done.returncode == 0, done.stderr
    (rental,) = project.rentals()
    assert project.ours() == [instance]
    assert int(steps(project)[-1][1]) == MORE
    assert "its machine is kept, as its table says: $0.17 so far" in done.stderr
    assert project.client.run("reconcile").returncode == 0
    assert project.ours() == [instance]
    child = steps(project)[-1][0]
    assert child in project.client.ok("hosts")
    assert project.client.run("reconcile", "--adopt", instance).returncode == 0
    nothing_left(project)
    seen = project.client.run("resume", child)
    assert (seen.returncode, f"at most ${project.rentals()[0].cents / 100:.2f}" in seen.stderr) == (4, True)
    assert project.rentals()[0].nonce == rental.nonce


@pytest.mark.long
def test_a_run_is_launched_again_at_a_rented_machine(project):
    """A run of this machine there, from step 1."""
    run = stopped(project, "--host", "local")
    let_go(project)
    done = project.client.run("rerun", run, *ON_RENTED)
    assert done.returncode == 0, done.stderr
    (rental,) = project.rentals()
    assert [int(step) for by, step, _ in steps(project) if by == rental.intent.run] == [*range(1, STEPS + 1)]
    nothing_left(project)


def fill(folder):
    """Use up a disk."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


@pytest.mark.long
@pytest.mark.parametrize("where", ["runs", "rentals", "there"])
def test_a_full_disk_keeps_a_kept_machine_for_its_run(project, small_disk, where):
    """What failed is said, the machine is kept as before, and once there is room the same command goes on there."""
    project.table(keep=True)
    if where == "runs":
        project.client.runs.symlink_to(small_disk)
        project.client.variables["LAUNCH_RUNS"] = str(small_disk)
    if where == "rentals":
        rentals = project.ledger.place("x").parent
        rentals.parent.mkdir(parents=True)
        rentals.symlink_to(small_disk)
    run = stopped(project, *ON_RENTED)
    (instance,) = project.ours()
    machine = project.instances.newest
    let_go(project)
    if where == "there":
        machine.enter("sh", "-c", FULL_THERE)
    else:
        filler = fill(small_disk)
    seen = project.client.run("resume", run, "--set", f"steps={MORE}")
    assert "Traceback" not in seen.stderr
    assert seen.returncode in (1, 3, 4), seen.stderr
    assert "No space left on device" in seen.stderr
    assert project.ours() == [instance]
    (rental,) = project.rentals()
    if where == "rentals":
        assert f"{rentals}: cannot write the rental ledger, so nothing is rented: No space" in seen.stderr
    (row, *more) = [one for one in project.client.ok("hosts").splitlines() if run in one]
    assert ("alive" in row, more) == (True, [])
    until(lambda: project.ledger.is_held(rental.nonce), "a process that keeps it")
    if where == "there":  # a machine with less than 1 GB is refused
        return
    filler.unlink()
    done = project.client.run("resume", run, "--set", f"steps={MORE}")
    assert done.returncode == 0, done.stderr
    assert int(steps(project)[-1][1]) == MORE
    assert project.ours() == [instance]


FULL_THERE = """
set -e
cd /home/ubuntu
cp -a .launch /tmp/launch-before-$$
mount -t tmpfs -o size=40m,mode=755 tmpfs .launch
cp -a /tmp/launch-before-$$/. .launch/
chown --reference=/home/ubuntu .launch
rm -rf /tmp/launch-before-$$
dd if=/dev/zero of=.launch/filler bs=4096 2>/dev/null || true
"""
