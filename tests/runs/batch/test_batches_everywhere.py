"""A batch over every kind of place, whose worker is killed, whose links are cut, and whose services fail: each item ends once.

On this machine, on two roots over SSH, in containers, at the stand-ins for Kaggle and Lambda Cloud, and on a host that is down.
"""

import collections
import csv
import os
import random
import time

import pytest
from testbed.batches import batches_for
from testbed.kaggle_account import HOST

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="a batch over several hosts, begun again after each kill"),
]

KILLS = int(os.environ.get("LAUNCH_BATCH_KILLS", "3"))
"""How often the worker is killed; `make batches` asks for twenty, over 40 items."""
IS_WHOLE = KILLS > 3
COUNT = 40 if IS_WHOLE else 12
WITHIN_S = 4.0
ANYWHERE = ("local", "A", "B", "dock")


@pytest.fixture
def made(client, ssh_host, engine, kaggle_account, lambda_cloud):
    """A client with a host of each kind."""
    path = client.project / "launch.toml"
    tables = [path.read_text()]  # of machines that are rented
    kaggle_account.host()
    path.write_text("\n".join([*tables, path.read_text()]))
    with batches_for(client, ssh_host) as batches:
        batches.add_docker(engine)
        yield batches
        for name in engine.docker("ps", "-aq").split():
            engine.docker("rm", "-f", name)


def items_of(made):
    """Items for each kind of place. What may run at several hosts has the one that is down first in its list."""
    items = made.items(COUNT, steps=6, pause=0.1)
    for number, item in enumerate(items):
        item["host"] = ["gone", *random.sample(ANYWHERE, len(ANYWHERE))]
        if number % 8 in (3, 6, 7):
            item["host"] = {3: HOST, 6: "rented", 7: "dock"}[number % 8]
        if number % 8 == 6:
            item["profile"] = "a100_40gb"
    return items


def break_services(account, cloud):
    """Let some of the next calls of both services go wrong: answers that are lost, 429 and 5xx."""
    account.service.fail("SaveKernel", "lost")
    account.service.fail("GetKernelSessionStatus", "status", status=503)
    account.service.fail("ListKernelSessionOutput", "status", status=429)
    cloud.service.fail("launch", "lost")
    cloud.service.fail("instances", "status", status=503)
    cloud.service.fail("terminate", "status", status=429)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3 if IS_WHOLE else 1))
def test_a_batch_over_every_kind_of_place_ends_each_item_once(
    made, ssh_host, engine, kaggle_account, lambda_cloud, seed, record_property
):
    """By the items' own ledger, the engine, and the accounts of both services. What only the dead host may have is still queued."""
    random.seed(seed)
    items = items_of(made)
    stuck = {**made.items(COUNT + 1)[-1], "host": "gone"}
    file = made.write([*items, stuck], max_parallel=6, max_cost=100)
    killed, words = 0, ["batch", file, "--yes"]
    kaggle_account.hurry()
    break_services(kaggle_account, lambda_cloud)
    while killed < KILLS and made.noted("end").total() < COUNT:
        process = made.client.start(*words)
        for _ in range(2):
            time.sleep(random.uniform(0.2, WITHIN_S / 2))
            ssh_host.cut()
        killed += process.poll() is None
        process.kill()
        process.communicate()
        if [*(made.client.runs / "batches").glob("[a-z]*")]:
            words = ["batch", "resume"]
    done = made.client.run(*words, timeout=300)
    assert done.returncode == 4, done.stderr + done.stdout  # the host that is down
    rows = made.judge_all_but(stuck["name"], [item["name"] for item in items])
    made.judge_docker(engine)
    made.judge_clouds(kaggle_account, lambda_cloud)
    hosts = collections.Counter(row["host"] for row in rows.values() if row["host"])
    assert {*hosts} >= {"dock", HOST, "rented"}
    assert_table_is_true(made, rows)
    record_property("done", f"{COUNT + 1} items, seed {seed}")
    record_property("kills", str(killed))
    record_property("hosts", ", ".join(f"{host} {hosts[host]}" for host in sorted(hosts)))
    record_property("once", str(COUNT))


def assert_table_is_true(made, rows):
    """Stopped, the batch has ended, and its table has each item with its state, and what was rented for it."""
    made.client.ok("batch", "stop", "--yes")
    made.client.run("batch", "resume")
    with (made.client.runs / "batches" / "sweep" / "results.csv").open(newline="") as file:
        table = {row["item"]: row for row in csv.DictReader(file)}
    assert table.keys() == rows.keys()
    for name, row in rows.items():
        expected = "dropped" if row["state"] == "queued" else row["state"]
        assert (table[name]["state"], table[name]["run"]) == (expected, row["run"] or "")
        assert (table[name]["cost"] != "") == (row["host"] == "rented")
