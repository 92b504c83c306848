"""A run whose host does not answer goes on elsewhere from what this client holds; the host hears of it when it answers."""

import json

import pytest
from testbed.client import processes_of, until
from testbed.two_hosts import STEPS, two_hosts

pytestmark = pytest.mark.slow(reason="each test starts several clients")


@pytest.fixture
def two(client, ssh_host):
    """An SSH host `A` with another user, and this machine; and a job with data, too long for A to end it alone."""
    with two_hosts(client, ssh_host) as made:
        yield made


def pulled(two, pause=1.0):
    """A run in the middle of its work on A, whose newest checkpoint is here."""
    run = two.started(pause=pause)
    two.client.ok("pull", run, "--checkpoint", "last")
    return run


def trained(two, run):
    """The steps of one run, in the order in which it trained them."""
    return [int(step) for named, step, _, _ in two.ledger() if named == run]


def row(two, run):
    """A run's row of `launch ps --json`."""
    return two.client.summary(run)


def test_a_run_goes_on_without_its_host_which_ends_its_own_when_it_answers(two, ssh_host):
    """From the checkpoint here; A trains on until any verb reaches it, and then nothing of it is left."""
    client = two.client
    run = pulled(two)
    newest = max(int(path.name.rpartition("-")[2]) for path in (client.runs / run / "checkpoints").iterdir())
    with ssh_host.away():
        seen = client.run("recover", run, "--host", "local")
        assert (seen.returncode, f"launch recover {run[-6:]} --host local --abandon" in seen.stderr) == (
            4,
            True,
        )
        assert two.runs_on("local") == {}
        seen = client.run("recover", run, "--host", "local", "--abandon")
        assert seen.returncode == 0, seen.stderr
        ((child, _),) = two.runs_on("local").items()
        assert f"{child} on local goes on from step {newest} of {run}" in seen.stdout
        assert f"A may still train {run}" in seen.stderr
        until(lambda: trained(two, child), "a step of the child")
        assert processes_of(two.roots["A"] / "runs" / run)
        assert row(two, run)["goes_on"] | {"abandoned": 0} == {
            "run": child, "host": "local", "root": row(two, run)["goes_on"]["root"],
            "abandoned": 0, "told": None, "settled": None, "also": None,
        }  # fmt: skip
        listed = client.ok("ps")
        assert f"abandoned, goes on as {child[-6:]}; not yet told" in listed
        assert f"its parent {run[-6:]} may still train on A" in listed
    client.ok("sweep", "--host", "A")  # any verb
    assert not processes_of(two.roots["A"] / "runs" / run)
    assert two.runs_on("A") == {run: "stopped"}
    moved = json.loads((two.roots["A"] / "runs" / run / "control" / "moved.json").read_text())
    assert moved["run"] == child
    assert row(two, run)["goes_on"]["settled"] is not None
    assert "not yet told" not in client.ok("ps")
    assert "succeeded" in client.seen("attach", child)
    assert trained(two, child) == [*range(newest + 1, STEPS + 1)]
    assert two.everywhere() == {run: "stopped", child: "succeeded"}
