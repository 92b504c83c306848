"""A run in a container on a rented machine, which has its own network and a Docker Engine that only root may ask."""

import json

import pytest
from testbed.client import missing
from testbed.engine import BASE
from testbed.lambda_cloud import lambda_cloud_for
from testbed.lambda_machines import Instances
from testbed.machine import remove_bridge
from testbed.missing_part import MissingPartError

JOB = f"""
name = "boxed"
command = ["python3", "train.py"]
image = "{BASE}"
"""
TRAIN = """
import os
os.makedirs("out")
open("out/weights", "w").write("w" * 1000)
print("in a container:", os.path.exists("/.dockerenv"))
"""


@pytest.fixture
def boxed(client, tmp_path, say):
    """An account whose instances are whole machines with an engine, and a job with an image."""
    try:
        with lambda_cloud_for(client, tmp_path, lambda service: Instances(service, say=say)) as made:
            client.script(TRAIN)
            (client.project / "job.toml").write_text(JOB)
            yield made
    except MissingPartError as error:
        missing(str(error))
    finally:
        remove_bridge()


def test_a_container_on_a_rented_machine(boxed):
    """The machine is set up, and what its engine says is in the log; the run's files come home before it is ended."""
    said = boxed.client.seen("--host", "rented", "--profile", "a100_40gb", "--job", "job.toml")
    assert "✓ setup" in said
    assert "in a container: True" in said
    (rental,) = boxed.rentals()
    assert rental.state == "ended"
    assert boxed.ours() == []
    run = boxed.client.runs / rental.intent.run
    assert (run / "outputs" / "out" / "weights").read_text() == "w" * 1000
    assert json.loads((run / "plan.json").read_text())["runtime"] == "docker"
    log = (boxed.ledger.place(rental.nonce) / "setup.log").read_text().splitlines()
    assert log[-1] == "done: nothing to do"
    assert log[-2].startswith("docker ")


@pytest.mark.long
def test_a_machine_that_cannot_be_set_up(boxed):
    """It is `setup-failed`, with its log; the rent is ended, and what was paid is said."""
    boxed.instances.breaks_engine = True
    done = boxed.client.run("--host", "rented", "--profile", "a100_40gb", "--job", "job.toml")
    assert done.returncode == 4
    assert "setting up the machine for containers failed" in done.stderr
    assert "setup.log" in done.stderr
    (rental,) = boxed.rentals()
    assert f"at most ${rental.cents / 100:.2f}" in done.stderr
    assert boxed.ours() == []
