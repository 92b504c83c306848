"""A launch that rents its machine: what is rented, logged in to, brought home and ended, by the stand-in's own account."""

import pytest

TRAIN = """
import os
print("on", os.uname().nodename, os.environ["USER"])
os.makedirs("out", exist_ok=True)
open("out/weights", "w").write("w" * 1000)
"""


@pytest.fixture
def project(lambda_cloud):
    """A project with a script."""
    lambda_cloud.client.script(TRAIN)
    return lambda_cloud


def test_a_run_on_a_rented_machine(project):
    """It is rented, booted and logged in to, the run's files come home, and then the machine is gone."""
    said = project.client.seen("--host", "rented", "--profile", "a100_40gb", "--", "python3", "train.py")
    print(said)
    (rental,) = project.rentals()
    assert rental.state == "ended" and project.ours() == []
    run = project.client.runs / rental.intent.run
    assert (run / "outputs" / "out" / "weights").read_text() == "w" * 1000
