"""What a launch loads: nothing that only other launches need."""

import json
import sys

import pytest

LOADED = """
import atexit, json, sys
atexit.register(lambda: open("loaded.json", "w").write(json.dumps(sorted(sys.modules))))
from launcher.cli import main
main()
"""
OF_OTHERS = (
    "cryptography",
    "docker",
    "fabric",
    "launcher.cli.json_shapes",
    "launcher.cli.terminal_view",
    "launcher.hosts.kaggle_service",
    "launcher.hosts.lambda_service",
    "launcher.hosts.rental_account",
    "launcher.hosts.ssh_wire",
    "matplotlib",
    "paramiko",
    "requests",
    "tensorboardX",
)


@pytest.mark.slow(reason="a launch")
def test_a_launch_on_this_machine_loads_no_account_no_provider_no_ssh_and_no_other_view(client):
    """From its words to its end, in a pipe: each of these takes 5 to 150 ms."""
    client.is_forked = False
    client.program = [sys.executable, "-c", LOADED]
    client.ok("--", "true")
    loaded = json.loads((client.project / "loaded.json").read_text())
    assert "launcher.runs.following" in loaded
    assert not [name for name in loaded if name.startswith(OF_OTHERS)]
