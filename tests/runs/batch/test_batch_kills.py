"""The process that runs a batch is killed at random moments: each item ends once, by the accounts of the places.

Over all kinds of place, and more often, that is `test_batches_everywhere.py`; this needs no engine.
"""

import random
import time

import pytest

pytestmark = pytest.mark.slow(reason="a batch over several hosts, begun again after each kill")

KILLS, COUNT = 4, 8
WITHIN_S = 4.0


@pytest.mark.long
def test_a_worker_killed_again_and_again_begins_nothing_twice(made):
    """One host is down throughout: an item that only it may have is still queued at the end, and the table says so."""
    random.seed(0)
    items = made.items(COUNT, steps=6, pause=0.1)
    for item in items:
        item["host"] = ["gone", *random.sample(["local", "A", "B"], 3)]
    stuck = {**made.items(COUNT + 1)[-1], "host": "gone"}
    words = ["batch", made.write([*items, stuck], max_parallel=6)]
    for _ in range(KILLS):
        process = made.client.start(*words)
        time.sleep(random.uniform(0.3, WITHIN_S))
        process.kill()
        process.communicate()
        if [*(made.client.runs / "batches").glob("[a-z]*")]:
            words = ["batch", "resume"]
    done = made.client.run(*words, timeout=500)
    assert done.returncode == 4, done.stderr + done.stdout  # the host that is down
    made.judge_all_but(stuck["name"], [item["name"] for item in items])
