"""A member of a run on several nodes, by itself: what it writes down for the run's agent, and how it follows orders."""

import json
import os
import signal
import subprocess
import sys

import pytest
from testbed.client import is_gone, until
from testbed.toy import shared_agent

from launcher.agent.record import secret
from launcher.agent.record.files import write_durably
from launcher.agent.record.rundir import Run

TRAIN = """
import json, os, signal, socket, sys, time
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["LAUNCH_SOCKET"])
def tell(kind, **more):
    agent.sendall(json.dumps({"kind": kind, "rank": 5, "time": 0, **more}).encode() + b"\\n")
def stop(*_):
    tell("stopping")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("in", os.environ["PET_NODE_RANK"], os.environ["PET_NPROC_PER_NODE"], os.environ["MASTER_ADDR"], flush=True)
print("hush, it is sesame-opens", flush=True)
tell("metric", step=1, values={"loss": 0.5, "note": "sesame-opens"})
for step in range(100):
    tell("beat", step=step)
open("pid", "w").write(str(os.getpid()))
while not os.path.exists("enough"):
    time.sleep(0.02)
sys.exit(int(open("enough").read()))
"""


class Node:
    """The second node of a run on two, and the member that runs there."""

    def __init__(self, folder, monkeypatch):
        self.run = Run(str(folder / "runs" / "261126-nodes-aaaaaa"))
        self.run.make()
        os.makedirs(self.run.code)
        self.agent = shared_agent()
        with open(os.path.join(self.run.code, "train.py"), "w") as file:
            file.write(TRAIN)
        plan = {
            "command": ["sh", "-c", "exec python3 train.py"],
            "nodes": [{"ranks": 1}, {"ranks": 4}],
            "secrets": ["WORD"],
        }
        write_durably(self.run.plan, json.dumps(plan))
        write_durably(self.run.token, "00")
        secret.write(self.run, b'{"WORD": "sesame-opens"}')
        self.attempt = self.run.new_folder()
        write_durably(self.attempt.attempt, json.dumps({"version": 1, "port": 4000, "runtime": {}}))
        self.place = self.attempt.of_node("n2")
        words = [sys.executable, "-I", str(self.agent), "member", self.run.path, "1", "n1", "30"]
        variables = {**os.environ, "SLURM_NODEID": "1", "SLURMD_NODENAME": "n2"}
        self.member = subprocess.Popen(words, env=variables, stdin=subprocess.PIPE)
        path = os.path.join(self.run.code, "pid")
        until(lambda: os.path.exists(path) and os.path.getsize(path), "the command")
        with open(path) as file:
            self.pid = int(file.read())

    def order(self, word):
        """Give an order, as the run's agent does."""
        self.member.stdin.write(word + b"\n")
        self.member.stdin.flush()

    def end_with(self, code):
        """Let the command end."""
        write_durably(os.path.join(self.run.code, "enough"), str(code))

    def reports(self):
        """What it has reported."""
        with open(self.place.reports) as file:
            return [json.loads(line) for line in file]

    def close(self):
        """End the member, whose command then ends, too."""
        self.attempt.release()
        if self.member.poll() is None:
            self.member.kill()
        with self.member:
            pass
        until(lambda: is_gone(self.pid), "the command's end")


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Node(tmp_path, monkeypatch)
    yield made
    made.close()


def test_what_workers_report_and_print_lies_in_the_nodes_folder(node):
    """Without secrets, and with one beat of many; the ranks know which node they are."""
    until(lambda: len(node.reports()) >= 3, "the reports")
    node.end_with(0)
    assert node.member.wait(30) == 0
    kinds = [report["kind"] for report in node.reports()]
    assert kinds == ["evidence", "metric", "beat"]
    metric = node.reports()[1]
    assert (metric["rank"], metric["step"], metric["values"]) == (5, 1, {"loss": 0.5, "note": "***"})
    with open(node.place.output) as file:
        assert file.read() == "in 1 4 n1\nhush, it is ***\n"
    state = node.place.read_state()
    assert (state["state"], state["exit"], state["signal"]) == ("succeeded", 0, None)


def test_a_command_that_fails_says_so_to_slurm_and_to_the_agent(node):
    """Slurm ends the other members by the exit status."""
    node.end_with(3)
    assert node.member.wait(30) == 3
    state = node.place.read_state()
    assert (state["state"], state["reason"], state["exit"]) == ("failed", None, 3)


def test_an_order_to_stop_is_passed_on(node):
    """The command ends by itself."""
    node.order(b"stop")
    assert node.member.wait(30) == 0
    assert "stopping" in [report["kind"] for report in node.reports()]
    assert node.place.read_state()["reason"] == "ordered"


def test_an_order_to_end_now_kills(node):
    """That is no failure of this node: Slurm must not end the others, which report what they do."""
    node.order(b"kill")
    assert node.member.wait(30) == 0
    state = node.place.read_state()
    assert (state["signal"], state["reason"]) == (signal.SIGKILL, "ordered")
    assert "stopping" not in [report["kind"] for report in node.reports()]


def test_stacks_are_asked_for_where_the_processes_are(node):
    """The command has no handler for it; what it waits for is reported."""
    node.order(b"stacks")
    (hang,) = until(
        lambda: [one["values"] for one in node.reports() if "hang" in one.get("values", {})], "the answer"
    )
    assert hang["node"] == "n2"
    assert node.pid in [one["pid"] for one in hang["hang"]["processes"]]


def test_a_member_whose_agent_has_died_ends_its_command(node):
    """Its orders end with the agent, and so does the command, at once."""
    node.member.stdin.close()
    assert node.member.wait(30) == 0
    assert is_gone(node.pid)
    assert node.place.read_state()["signal"] == signal.SIGKILL


def test_a_run_that_has_gone_on_without_this_attempt_has_it_ended(node):
    """As its agent would: nothing of an older attempt may save."""
    node.run.new_folder(node.attempt).release()
    assert node.member.wait(30) == 0
    assert is_gone(node.pid)


def test_a_member_that_is_killed_leaves_no_command(node):
    """Its guard ends it, although nothing descends from the member any more."""
    node.member.kill()
    until(lambda: is_gone(node.pid), "the command's end")
