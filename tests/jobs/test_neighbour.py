"""Someone else on the server or the cluster, while ranks train: a program that connects to each port of theirs.

It writes what the agents of torchrun's `c10d` would unpickle; the code in it makes a file.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.client import REPOSITORY, processes_of, until, until_left

from launcher.agent.diagnosis.diagnose import diagnose
from launcher.agent.training.variables import Rendezvous, native_command

pytestmark = pytest.mark.training

TRAIN = """
import os, sys, time
import launcher_worker as worker
import torch
import torch.distributed as dist
rank, home = os.environ["RANK"], sys.argv[1]
def wait(mark, own):
    open(os.path.join(home, own + rank), "w").close()
    while not os.path.exists(os.path.join(home, mark)):
        time.sleep(0.02)
wait("meet", "here")
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
wait("enough", "met")
dist.barrier()
if rank == "0":
    worker.done(1)
os._exit(0)
"""
ATTACK = """
import base64, pickle, sys
from torch.distributed import TCPStore
class Code:
    def __reduce__(self):
        return open, (sys.argv[1], "w")
for place in sys.argv[2:]:
    host, port = place.rsplit(":", 1)
    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    keys = [key for key in store.list_keys() if key.startswith("torch.rendezvous.") and "/" not in key]
    for key in keys or ["torch.rendezvous.none"]:
        store.set(key, base64.b64encode(pickle.dumps(Code())))
"""


def listening(pids):
    """The addresses and ports where processes listen, as the kernel lists them."""
    sockets = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(descriptor))
            except OSError:  # closed meanwhile
                continue
    shown = subprocess.run(["ss", "-Hltne"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {
        line.split()[3]
        for line in shown
        if any(f"socket:[{word[4:]}]" in sockets for word in line.split() if word.startswith("ino:"))
    }


def attack(made, places):
    """What someone else does who knows no more than where processes listen: he writes into the store."""
    known = [place.replace("*:", "127.0.0.1:").replace("[::ffff:", "").replace("]", "") for place in places]
    subprocess.run([sys.executable, "-c", ATTACK, str(made), *known], check=True, timeout=60)


def until_all(home, mark):
    """Wait until both ranks have made a mark, or the attack has succeeded."""
    files = [home / f"{mark}{rank}" for rank in (0, 1)]
    until(lambda: (home / "pwned").exists() or all(file.exists() for file in files), f"the ranks {mark}")


@pytest.mark.parametrize(
    "command",
    [
        ("python",),
        pytest.param(("torchrun", "--nproc-per-node", "2"), marks=pytest.mark.long),
        pytest.param(("accelerate", "launch", "--multi_gpu", "--num_processes", "2"), marks=pytest.mark.long),
    ],
    ids=["ours", "torchrun", "accelerate"],
)
def test_nobody_else_runs_code_in_ranks_of_one_node(client, cards, command):
    """They do not unpickle what is written into their store; ours can be reached from this machine alone."""
    client.script(TRAIN)
    cards.put(*[("t4", {})] * 2)
    words = ("--profile", "t4x2", "--set", "batch.global=2")
    run = client.detached(*words, "--", *command, "train.py", str(client.home))
    folder = client.home / ".launch" / "runs" / run
    until_all(client.home, "here")
    stores = listening(processes_of(folder))
    assert stores
    attack(client.home / "pwned", stores)
    (client.home / "meet").touch()
    until_all(client.home, "met")
    assert not (client.home / "pwned").exists()
    places = listening(processes_of(folder))
    (client.home / "enough").touch()
    until_left(folder)
    assert not (client.home / "pwned").exists()
    assert client.summary(run)["state"] == "succeeded"
    if command == ("python",):
        assert {place.rpartition(":")[0] for place in places} == {"127.0.0.1"}


class TwoNodes:
    """Two nodes of a run, both on this machine, with a rank each."""

    def __init__(self, folder, host, port):
        (folder / "train.py").write_text(TRAIN)
        words = native_command(["python", "train.py", str(folder)], sys.executable, 2)
        here = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "launcher" / "worker"),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.nodes = []
        for node in (1, 0):  # the one that waits for the other is first
            place = Rendezvous(nodes=2, node=node, ranks=1, host=host, port=port, name="run-2")
            self.nodes.insert(0, subprocess.Popen(words, cwd=folder, env={**here, **place.variables}))

    def end(self):
        """End what is left of them."""
        for node in self.nodes:
            node.terminate()
            node.wait(60)


@pytest.fixture
def port():
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.mark.long
def test_nobody_else_runs_code_in_ranks_of_two_nodes(tmp_path, port):
    """Their store listens on the first one's address alone, and how they meet is in no command line."""
    two = TwoNodes(tmp_path, "127.0.0.1", port)
    try:
        until_all(tmp_path, "here")
        first = two.nodes[0].pid
        words = Path(f"/proc/{first}/cmdline").read_text()
        places = listening([first])
        attack(tmp_path / "pwned", places)
        for mark in ("meet", "enough"):
            (tmp_path / mark).touch()
        ends = [node.wait(60) for node in two.nodes]
    finally:
        two.end()
    assert not (tmp_path / "pwned").exists()
    assert ends == [0, 0]
    assert places == {f"127.0.0.1:{port}"}
    assert str(port) not in words


def test_a_port_that_somebody_else_has_taken_is_named(tmp_path, port):
    """The attempt ends with a class whose remedy is another port."""
    place = Rendezvous(nodes=2, node=0, ranks=1, host="127.0.0.1", port=port, name="run-2")
    words = native_command(["python", "train.py"], sys.executable, 2)
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY / "launcher" / "worker"), **place.variables}
    with socket.create_server(("127.0.0.1", port)):
        done = subprocess.run(words, env=variables, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == 1
    failure = diagnose(done.stderr)
    assert failure is not None
    assert failure.name == "port-in-use"
