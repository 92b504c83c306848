"""A batch whose items are pushed to Kaggle's stand-in and to machines rented at Lambda Cloud's, beside this machine."""

import collections

import pytest
from testbed.batches import batches_for

pytestmark = pytest.mark.slow(reason="each test starts several runs")


@pytest.fixture
def made(client, ssh_host, kaggle_account, lambda_cloud):
    """A client with several hosts, among them `k`, an account of Kaggle's, and `rented`, one of Lambda Cloud's."""
    path = client.project / "launch.toml"
    tables = [path.read_text()]  # the last fixture's
    kaggle_account.host()
    tables.append(path.read_text())
    path.write_text("\n".join(tables))
    with batches_for(client, ssh_host) as batches:
        yield batches


def results(made):
    """What came home of each item's run."""
    return sorted(path.read_text() for path in made.client.runs.glob("[0-9]*/outputs/out/result"))


def test_items_run_at_every_kind_of_place(made, kaggle_account, lambda_cloud):
    """Each once, by the accounts of the places; what was rented is gone, and what was pushed too."""
    items = made.items(6)
    for item, host in zip(items, ["local", "A", "k", "k", "rented", "rented"], strict=True):
        item["host"] = host
        item["profile"] = "a100_40gb" if host == "rented" else "cpu"
    done = made.client.run("batch", made.write(items, max_cost=40), "--yes", timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert results(made) == [item["name"] for item in items]
    assert made.noted("begin") == collections.Counter(item["name"] for item in items)
    rows = made.rows()
    pushed = [f"alice/launch-{rows[name]['run']}-1/1" for name in ("i3", "i4")]
    assert sorted(kaggle_account.pushes()) == sorted(pushed)
    assert kaggle_account.kernels() == []
    assert len(lambda_cloud.service.of("launch")) == 2
    assert {rental.intent.run for rental in lambda_cloud.rentals()} == {
        rows[name]["run"] for name in ("i5", "i6")
    }
    assert lambda_cloud.ours() == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("host", ["k", "rented"])
def test_a_worker_that_is_killed_pushes_and_rents_nothing_twice(
    made, kaggle_account, lambda_cloud, host, count, when
):
    """At each transition of an item; the next command goes on, and nothing that is paid for is left."""
    (item,) = made.items(1, host=host, profile="a100_40gb" if host == "rented" else "cpu")
    file = made.write([item], max_cost=40)
    made.dying(count, when)
    process = made.client.start("batch", file, "--yes")
    process.communicate(timeout=120)
    assert process.returncode == -9
    made.living()
    done = made.client.run("batch", "resume", timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert results(made) == ["i1"]
    assert made.noted("begin") == {"i1": 1}
    run = made.rows()["i1"]["run"]
    if host == "k":
        assert kaggle_account.pushes() == [f"alice/launch-{run}-1/1"]
        assert kaggle_account.kernels() == []
        return
    assert lambda_cloud.ours() == []
    made.client.ok("reconcile")
    begun = [rental for rental in lambda_cloud.rentals() if rental.state != "refused"]
    assert {rental.intent.run for rental in begun} == {run}
    assert len(lambda_cloud.service.of("launch")) == len(begun) == 1


def test_what_is_rented_stays_within_the_limit_of_the_batch(made, lambda_cloud):
    """As long as one machine might cost nearly all of it, there is one at a time, by the stand-in's own account."""
    items = made.items(2, host="rented", profile="a100_40gb")
    done = made.client.run("batch", made.write(items, max_cost=8.5), "--yes", timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "$7.96 promised, and this item may cost $7.96" in done.stdout
    first, second = sorted(lambda_cloud.rentals(), key=lambda rental: rental.intent.time)
    assert first.ended <= second.intent.time
    assert sum(rental.cents for rental in (first, second)) <= 850


def test_a_limit_that_one_machine_may_break_rents_nothing(made, lambda_cloud):
    """The item is refused with what it may cost; without any limit nothing is even asked."""
    file = made.write(made.items(1, host="rented", profile="a100_40gb"))
    done = made.client.run("batch", file)
    assert done.returncode == 2
    assert "--max-cost 20" in done.stderr
    done = made.client.run("batch", file, "--max-cost", "0.01")
    assert done.returncode == 3, done.stderr + done.stdout
    assert "max_cost = 0.01 of the batch" in done.stdout
    assert lambda_cloud.service.of("launch") == []
