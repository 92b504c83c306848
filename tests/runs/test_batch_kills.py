"""The process that works a batch is killed at random moments: each item ends once, by the accounts of the places."""

import collections
import os
import random
import time

import pytest
from testbed.batches import batches_for
from testbed.client import until

pytestmark = pytest.mark.slow(reason="a batch over several hosts, begun again after each kill")

KILLS = int(os.environ.get("LAUNCH_BATCH_KILLS", "4"))
"""How often the worker is killed; `make batches` asks for twenty, over 40 items and all kinds of place."""
IS_WHOLE = KILLS > 4
WITHIN_S = 4.0


@pytest.fixture
def made(client, ssh_host, request):
    """A client with several hosts; with those of the clouds if the whole is asked for."""
    path = client.project / "launch.toml"
    if IS_WHOLE:
        request.getfixturevalue("lambda_cloud")
        tables = [path.read_text()]
        request.getfixturevalue("kaggle_account").host()
        path.write_text("\n".join([*tables, path.read_text()]))
    with batches_for(client, ssh_host) as batches:
        yield batches


@pytest.mark.parametrize("seed", range(3 if IS_WHOLE else 1))
def test_a_worker_killed_again_and_again_begins_nothing_twice(made, request, seed, record_property):
    """One host is down throughout: an item that only it may have is still queued at the end, and the table says so."""
    random.seed(seed)
    count = 40 if IS_WHOLE else 8
    items = made.items(count, steps=6, pause=0.1)
    for number, item in enumerate(items):
        item["host"] = ["gone", *random.sample(["local", "A", "B"], 3)]
        if IS_WHOLE and number % 8 == 3:
            item["host"] = ["k"]
        elif IS_WHOLE and number % 8 == 6:
            item |= {"host": ["rented"], "profile": "a100_40gb"}
    stuck = {**made.items(count + 1)[-1], "host": "gone"}
    file = made.write([*items, stuck], max_parallel=6, max_cost=100)
    killed = 0
    words = ["batch", file, "--yes"]
    while killed < KILLS:
        process = made.client.start(*words)
        time.sleep(random.uniform(0.3, WITHIN_S))
        killed += process.poll() is None
        process.kill()
        process.communicate()
        if (made.client.runs / "batches").is_dir() and [*(made.client.runs / "batches").glob("[a-z]*")]:
            words = ["batch", "resume"]
        if made.noted("end").total() == count:
            break
    done = made.client.run(*words, timeout=500)
    assert done.returncode == 4, done.stderr + done.stdout  # the host that is down
    names = [item["name"] for item in items]
    assert made.noted("begin") == collections.Counter(names)
    assert made.noted("end") == collections.Counter(names)
    rows = made.rows()
    assert collections.Counter(row["state"] for row in rows.values()) == {"succeeded": count, "queued": 1}
    assert rows[stuck["name"]]["state"] == "queued"
    results = [path.read_text() for path in made.client.runs.glob("[0-9]*/outputs/out/result")]
    assert sorted(results) == sorted(names)
    for host in made.roots:
        assert set(made.runs_on(host)) == {row["run"] for row in rows.values() if row["host"] == host}
        assert set(made.runs_on(host).values()) <= {"succeeded"}
    if IS_WHOLE:
        judge_clouds(made, request, rows)
    hosts = collections.Counter(row["host"] for row in rows.values() if row["host"])
    record_property("done", f"{count + 1} items, seed {seed}")
    record_property("kills", str(killed))
    record_property("hosts", ", ".join(f"{host} {hosts[host]}" for host in sorted(hosts)))
    record_property("once", str(count))


def judge_clouds(made, request, rows):
    """Each item of an account was pushed, or rented for, once; nothing that is paid for, or on the web, is left."""
    account, cloud = request.getfixturevalue("kaggle_account"), request.getfixturevalue("lambda_cloud")
    assert sorted(account.pushes()) == sorted(
        f"alice/launch-{row['run']}-1/1" for row in rows.values() if row["host"] == "k"
    )
    made.client.ok("reconcile")
    until(lambda: not cloud.ours(), "the end of all rents")
    runs = {row["run"] for row in rows.values() if row["host"] == "rented"}
    assert runs <= {rental.intent.run for rental in cloud.rentals()} <= runs
