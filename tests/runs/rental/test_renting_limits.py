"""The limit of a rental is a promise of money: whatever its link and its files are like, and nothing is lost in silence."""

import os
import re

import pytest
from testbed.client import until
from testbed.link import Link
from testbed.rented_walk import ON_RENTED, judge, let_go, moved_to, prepare, waiting

pytestmark = pytest.mark.slow(reason="each test brings files home over a slow link")
TRAIN = """
import os, time
os.makedirs("out")
open("out/weights", "wb").write(os.urandom(60_000_000))
open("out/small", "w").write("s")
print("begun", flush=True)
while not os.path.exists("/home/ubuntu/go"): time.sleep(0.05)
"""


@pytest.fixture
def link():
    """A link to a machine, which a test makes slow."""
    with Link("127.0.0.1", 9) as made:
        yield made


@pytest.fixture
def project(lambda_cloud, link):
    """A project whose machines are behind the link."""
    start = lambda_cloud.service.state.on_start

    def behind(one):
        address, port = start(one)
        link.lead_to(address, port)
        return link.address, link.port

    lambda_cloud.service.state.on_start = behind
    lambda_cloud.table(port=link.port)
    lambda_cloud.client.script(TRAIN)
    return lambda_cloud


def has_come(project, name):
    """Whether a file of the newest run is here."""
    return any(project.client.runs.glob(f"2*/outputs/out/{name}"))


def pass_time(project):
    """Let it be later and later until the rent has ended."""
    until(lambda: not project.ours() or project.clock.sleep(60), "the end of the rent", timeout=120, every=1)


@pytest.mark.long
@pytest.mark.parametrize("who", ["follower", "keeper"])
def test_a_slow_link_does_not_decide_what_a_rent_costs(project, link, who):
    """The machine ends at the limit though its largest file is still on its way; that is said, then and later."""
    if who == "follower":
        process = project.started("--", "python3", "train.py")
    else:
        project.client.ok("--detach", *ON_RENTED, "--", "python3", "train.py")
    (rental,) = project.rentals()
    run = rental.intent.run
    link.loss = 1.0
    project.go()
    until(lambda: has_come(project, "small"), "the first file")
    project.clock.sleep(rental.intent.deadline - 900 - project.clock.now())
    pass_time(project)
    until(lambda: not project.rentals()[0].is_open, "the record of its end")
    (rental,) = project.rentals()
    assert rental.why == "limit"
    late = rental.ended - rental.intent.deadline
    assert -120 < late < 600
    assert not has_come(project, "weights")
    lost = r"not everything was downloaded before the end of the rental: out/weights \(60.0 MB\)"
    if who == "follower":
        _, said = process.communicate(timeout=180)
        assert process.returncode == 4
    else:
        project.until_left()
        said = (project.ledger.place(rental.nonce) / "keeper.log").read_text()
    assert re.search(lost, said), said
    known = r"the download will not finish before the limit: \S+ MB at .*/s take .*, and .* are left   more time   launch extend"
    assert re.search(known, said), said
    for words in (("attach", run), ("pull", run), ("resume", run)):
        seen = project.client.run(*words)
        assert re.search(lost, seen.stdout + seen.stderr), seen


@pytest.mark.long
def test_a_run_stops_in_time_to_come_home_before_the_limit(project):
    """Its machine is told when to ask it to save: ten minutes before the limit, of a short rental a tenth of it before."""
    process = project.started("--", "python3", "train.py")
    (rental,) = project.rentals()
    (told,) = project.instances.newest.homes.rglob("rented.json")
    seconds = float(re.search(r"[0-9.]+", told.read_text())[0]) - told.stat().st_mtime
    assert abs(seconds - (rental.intent.deadline - 600 - rental.ready)) < 60
    project.go()
    process.communicate(timeout=90)
    assert project.ours() == []


@pytest.mark.long
def test_what_was_said_of_the_last_minutes(project):
    """The plan says that they are for bringing home."""
    said = project.client.run(*ON_RENTED, "--dry-run", "--", "python3", "train.py")
    assert "the last 10 minutes before the limit are reserved for downloads" in said.stdout + said.stderr
    project.table(max_hours=1)
    said = project.client.run(*ON_RENTED, "--dry-run", "--", "python3", "train.py")
    assert "the last 6 minutes before the limit are reserved for downloads" in said.stdout + said.stderr


@pytest.mark.long
def test_a_machine_is_not_ended_while_its_run_moves_away(project, link):
    """The run has ended there, and its keeper brings all home; but its code is still on its way to the other host."""
    prepare(project)
    (project.client.project / "table.bin").write_bytes(os.urandom(6_000_000))
    run = waiting(project, *ON_RENTED)
    link.loss = 1.0
    child = moved_to(project.client.run("recover", run, "--host", "local"), run)
    link.loss = 0.0
    let_go(project)
    project.client.run("attach", child)
    judge(project, run, child)
