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

from launcher.remote.training.variables import Rendezvous, native_command

pytestmark = pytest.mark.training

TRAIN = """
import os, sys, time
import launcher_worker as worker
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank, home = dist.get_rank(), sys.argv[1]
open(os.path.join(home, f"met{rank}"), "w").write(str(total.item()))
while not os.path.exists(os.path.join(home, "enough")):
    time.sleep(0.02)
dist.barrier()
if rank == 0:
    worker.done(1)
os._exit(0)
"""
ATTACK = """
import base64, os, pickle, sys, threading
from torch.distributed import TCPStore
class Code:
    def __reduce__(self):
        return open, (sys.argv[1], "w")
def write(host, port):
    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    keys = [key for key in store.list_keys() if key.startswith("torch.rendezvous.") and "/" not in key]
    for key in keys or ["torch.rendezvous.none"]:
        store.set(key, base64.b64encode(pickle.dumps(Code())))
    print("written", host, port, keys, flush=True)
    os._exit(0)
for place in sys.argv[2:]:  # gloo's ports never answer
    threading.Thread(target=write, args=place.rsplit(":", 1)).start()
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
    words = [sys.executable, "-c", ATTACK, str(made), *known]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert "written" in done.stdout


def test_nobody_else_runs_code_in_ranks_of_one_node(client, cards):
    """They can be reached from this machine alone, and do not unpickle what is written into their store."""
    client.script(TRAIN)
    cards.put(*[("t4", {})] * 2)
    words = ("--profile", "t4x2", "--set", "batch.global=2")
    run = client.detached(*words, "--", "python", "train.py", str(client.home))
    folder = client.home / ".launch" / "runs" / run
    until(lambda: all((client.home / f"met{rank}").exists() for rank in (0, 1)), "the ranks")
    places = listening(processes_of(folder))
    attack(client.home / "pwned", places)
    (client.home / "enough").touch()
    until_left(folder)
    assert client.summary(run)["state"] == "succeeded", client.summary(run)
    assert not (client.home / "pwned").exists()
    assert places
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


def test_nobody_else_runs_code_in_ranks_of_two_nodes(tmp_path, port):
    """Their store listens on the first one's address alone, and how they meet is in no command line."""
    two = TwoNodes(tmp_path, "127.0.0.1", port)
    try:
        until(lambda: all((tmp_path / f"met{rank}").exists() for rank in (0, 1)), "the ranks")
        first = two.nodes[0].pid
        assert str(port) not in Path(f"/proc/{first}/cmdline").read_text()
        (place,) = (place for place in listening([first]) if place.endswith(f":{port}"))
        attack(tmp_path / "pwned", [place])
        (tmp_path / "enough").touch()
        assert [node.wait(60) for node in two.nodes] == [0, 0]
    finally:
        two.end()
    assert not (tmp_path / "pwned").exists()
    assert (tmp_path / "met1").read_text() == "2.0"
