"""SIGKILL for `launch` at each request of a rent, from the first to the last: after two reconciles at once nothing is left.

The witness is the stand-in's own account: which instances live, whose end was asked for.
"""

import itertools
import signal

import pytest
from testbed.client import until

TRAIN = 'import os; os.makedirs("out"); open("out/weights", "w").write("w")\n'
REQUESTS = 11
"""The offers, our key twice, the launch, four looks while it boots, and at the end the list, the end, the list."""
IN_CI = {(4, "unheard"), (4, "accepted"), (8, "accepted"), (10, "unheard"), (10, "accepted")}
CASES = [
    pytest.param(number, how, id=f"{number}-{how}", marks=[] if (number, how) in IN_CI else pytest.mark.long)
    for number, how in itertools.product(range(1, REQUESTS + 1), ("unheard", "accepted"))
]


@pytest.fixture
def project(lambda_cloud):
    """A project with a script, an account with somebody else's instance, and machines that boot quickly."""
    lambda_cloud.client.script(TRAIN)
    habits = lambda_cloud.service.state.habits
    habits.boot_s, habits.end_s = 15, 4
    (account,) = lambda_cloud.service.state.accounts
    lambda_cloud.service.state.stranger(account, "research")
    return lambda_cloud


def launch(project):
    words = ("--host", "rented", "--profile", "a100_40gb", "--", "python3", "train.py")
    return project.client.start(*words)


def check(project):
    """After reconciling, nothing of ours lives, and the stranger's was not touched."""
    for one in [project.client.start("reconcile") for _ in range(2)]:
        one.communicate(timeout=120)
    last = project.client.run("reconcile", "--json")
    project.until_gone()  # a process may look after a run that was under way
    project.clock.sleep(300)
    assert [one.body["name"] for one in project.service.alive()] == ["research"]
    assert last.returncode == 0, last.stderr
    assert not project.service.terminated() & {
        one.id for one in project.service.state.machines.values() if one.body["name"] == "research"
    }
    until(lambda: not project.keepers(), "the end of what looked after a run")
    assert project.client.run("reconcile").returncode == 0
    assert not [rental for rental in project.rentals() if rental.is_open]
    assert project.service.state.violations == []


def test_a_launch_that_nobody_kills(project):
    """It makes as many requests as the cases below count on."""
    process = launch(project)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    calls = [line["call"] for line in project.service.calls]
    assert calls == [
        *("types", "keys", "add_key", "launch", *["instances"] * 4),
        *("instances", "terminate", "instances"),
    ]
    check(project)


@pytest.mark.parametrize(("number", "how"), CASES)
def test_killed_at_a_request(project, number, how):
    """Before it is accepted, which it then is not, or once it is and before its answer is sent."""
    counts = itertools.count(1)
    phase = "before" if how == "unheard" else "after"

    def kill(_line, *, now):
        if now != phase or next(counts) != number:
            return False
        process.kill()
        process.wait()
        return how == "unheard"

    project.service.before = lambda line: kill(line, now="before")
    project.service.after = lambda line: kill(line, now="after")
    process = launch(project)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    project.service.before = project.service.after = lambda _line: False
    check(project)
