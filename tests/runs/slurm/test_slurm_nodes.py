"""Runs on two nodes of a real Slurm cluster: what their ranks report comes home, and they are stopped and mended as one.

The trainings without torch are started by a shell on each node, so that there is no torchrun to load; their ranks are those
of their nodes.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import time

import pytest
from testbed.client import REPOSITORY, until
from testbed.kept import CLEAR_ROOT

pytestmark = pytest.mark.testbed

DDP = """
import json, os, sys
import launcher_worker as worker
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
targets = rows.sum(1, keepdim=True)
for step in range(1, 13):
    loss = torch.nn.functional.mse_loss(model(rows[rank::ranks]), targets[rank::ranks])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    worker.log(step, loss=float(total) / ranks)
    os.write(1, ("printed " + json.dumps([rank, os.uname().nodename, step, loss.item()]) + "\\n").encode())
if rank == 0:
    worker.done(step)
dist.barrier()
os._exit(0)  # gloo's own threads may abort a process that takes them apart
"""


@pytest.fixture
def hive(client, slurm):
    """The cluster, named `hive` in the client's project, whose jobs train on two nodes, on their CPUs."""
    table = slurm.logins[0].table("hive", environment=str(python_on(slurm)))
    (client.project / "launch.toml").write_text(f'{table}kind = "slurm"\npartition = "batch"\nnodes = 2\n')
    slurm.ssh("sh", "-c", f"rm -rf enough diverge ledger; {CLEAR_ROOT}")
    return slurm


def python_on(cluster):
    """The interpreter of these tests where the cluster's users may read it, on its machines alone."""
    folder = cluster.folder / "python"
    folder.mkdir(exist_ok=True)
    for machine in (cluster.logins[0], *cluster.nodes):
        if not machine.enter("ls", str(folder)):
            machine.enter("mount", "--bind", sys.base_prefix, str(folder))
    return folder / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def printed(lines):
    """What the ranks printed: rank, node, step, loss. It may follow a half of a line of gloo's, which is printed in pieces."""
    return [json.loads(found) for line in lines for found in re.findall(r"printed (\[[^]]*\])", line)]


@pytest.mark.long
def test_two_nodes_train_as_one_node_with_two_ranks_does(client, hive, tmp_path):
    """The losses are the same to the last digit, each node has one rank, and rank 0's losses are the curve."""
    client.script(DDP)
    worker = str(REPOSITORY / "launcher" / "worker")
    alone = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"],
        cwd=client.project,
        env={**os.environ, "PYTHONPATH": worker, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    packages = f"variables.PYTHONPATH={sysconfig.get_path('purelib')}"
    words = ("--set", packages, "--", "python", "train.py")
    done = client.run("--host", "hive", "--profile", "cpu", "--json", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ours = printed(event["text"] for event in events if event["kind"] == "log")
    others = printed(alone.stdout.splitlines())
    assert len(others) == 24
    assert sorted([rank, *figures] for rank, _, *figures in ours) == sorted(
        [rank, *figures] for rank, _, *figures in others
    )
    nodes = {rank: node for rank, node, *_ in ours}
    assert sorted(nodes.values()) == ["node1", "node2"]
    (end,) = (event for event in events if event["kind"] == "end")
    assert (end["state"], end["reason"]) == ("succeeded", "completed")
    reported = {event["rank"] for event in events if event["kind"] == "metric"}
    assert reported == {0, 1}
    curve = json.loads(client.ok("metrics", end["run"], "--json").splitlines()[0])
    assert curve["value"] == pytest.approx(sum(loss for _, _, step, loss in others if step == 1) / 2)


STEPS = """
import os, sys, time
import launcher_worker as worker
rank = int(os.environ["RANK"])
home = os.path.expanduser("~")
resumed = worker.resume_from()
begin = int(open(os.path.join(resumed, "step")).read()) if resumed else 0
def note(word):
    with open(os.path.join(home, "ledger"), "a") as file:
        file.write(f"{rank} {os.uname().nodename} {os.getpid()} {word}\\n")
note(f"from {begin}")
for step in range(begin + 1, 1001):
    time.sleep(0.05)
    worker.log(step, loss=1.0 / step)
    if worker.due(step) or step % 5 == 0:
        worker.save(step, lambda folder: open(os.path.join(folder, "step"), "w").write(str(step)))
    if worker.stopping():
        note("stopped")
        sys.exit(0)
    note(step)
    if rank == 1 and os.path.exists(os.path.join(home, "diverge")):
        from launcher_worker import channel
        channel.send("trip", step=step, values={"class": "nan-divergence", "why": "the loss is not finite", "since": step})
        sys.exit(1)
    if os.path.exists(os.path.join(home, "enough")):
        break
if rank == 0:
    worker.done(step)
"""
NO_CONTROLLER = (
    "echo 'slurm_load_job_steps error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
)
AGENT = "^[^ ]*python[^ ]* -I .* step /"
BY_SHELL = "RANK=$PET_NODE_RANK WORLD_SIZE=$PET_NNODES exec python3 train.py"


def ledger(cluster):
    """What the ranks have noted: rank, node, words."""
    return [(rank, node, words) for rank, node, _, words in notes(cluster)]


def notes(cluster):
    """The same, with the pid before the words."""
    return [line.split(maxsplit=3) for line in cluster.ssh("cat", "ledger", check=False).splitlines()]


def beside(cluster):
    """What ranks noted after a rank of a later attempt had made a step."""
    attempts, newest, late = {}, 0, []
    for rank, node, pid, words in notes(cluster):
        if words.startswith("from"):
            attempts[node, pid] = len(attempts) // 2
        elif attempts[node, pid] < newest:
            late.append((rank, node, pid, words))
        else:
            newest = attempts[node, pid]
    return late


def left(cluster):
    """The processes of the cluster's user on both nodes, as their machines list them."""
    return "".join(node.enter("pgrep", "-a", "-u", "ada", check=False) for node in cluster.nodes)


def detached(client, cluster, *more):
    """Launch the steps, and wait until both nodes have made some; return the run's id."""
    client.script(STEPS)
    words = ("--host", "hive", "--profile", "cpu", "--set", "batch.global=8", *more)
    run = client.detached(*words, "--", "sh", "-c", BY_SHELL)
    until(lambda: len({node for _, node, word in ledger(cluster) if word == "8"}) == 2, "steps on both nodes")
    return run


@pytest.mark.long
def test_a_worker_of_another_node_that_diverges_ends_the_run(client, hive):
    """What it reports counts as much, and nothing is left on either node."""
    run = detached(client, hive)
    hive.ssh("touch", "diverge")
    until(lambda: client.summary(run)["state"] == "failed", "the end")
    assert client.summary(run)["reason"] == "nan-divergence"
    until(lambda: not left(hive), "both nodes to be empty")


def test_a_stop_reaches_the_ranks_of_both_nodes(client, hive):
    """Each has the time to stop by itself, the checkpoint is the one of the last step, and nothing is left on either node."""
    run = detached(client, hive)
    client.ok("stop", run)
    assert client.summary(run)["state"] == "stopped"
    assert sorted((node, word) for _, node, word in ledger(hive) if word == "stopped") == [
        ("node1", "stopped"),
        ("node2", "stopped"),
    ]
    until(lambda: not left(hive), "both nodes to be empty")


@pytest.mark.long
def test_a_member_or_the_agent_that_is_killed_takes_the_attempt_with_it_and_the_next_one_resumes(
    client, hive
):
    """A member's end is the attempt's, of its own class; an agent's end is that of all members, on both nodes."""
    run = detached(client, hive)
    kill(hive.nodes[1], " member /")
    until(lambda: len(begins(hive)) == 4, "a second attempt")
    until(lambda: len(ledger(hive)) > 80, "more steps")
    kill(hive.nodes[0], AGENT)
    until(lambda: len(begins(hive)) == 6, "a third attempt")
    hive.ssh("touch", "enough")
    until(lambda: client.summary(run)["state"] == "succeeded", "the end")
    killed, _, done = attempts(client, run)
    assert (killed["reason"], killed["evidence"]["signal"]) == ("preempted", 9)
    assert done["reason"] == "completed"
    first, second, third = (set(begins(hive)[start : start + 2]) for start in (0, 2, 4))
    assert first == {"from 0"}
    assert len(second) == len(third) == 1  # both ranks from one checkpoint
    until(lambda: not left(hive), "both nodes to be empty")


@pytest.mark.long
def test_a_member_that_is_stopped_does_not_outlive_its_attempt(client, hive):
    """It cannot end by itself what it started on its node, so Slurm does; before it says so, no attempt begins.

    Other steps of the job stay.
    """
    run = detached(client, hive)
    job = hive.ssh("squeue", "--me", "--noheader", "-o", "%i").strip()
    other = f"srun --overlap --jobid={job} --nodes=1 --ntasks=1 --relative=1 sleep 300 >/dev/null 2>&1 </dev/null &"
    hive.ssh("sh", "-c", other)
    until(lambda: "sleep" in steps(hive), "a step beside it")
    kill(hive.nodes[1], " member /", "STOP")
    kill(hive.nodes[0], "^[^ ]*srun .* member /")
    until(lambda: len(begins(hive)) == 4, "a second attempt")
    until_steps(hive)
    assert beside(hive) == []
    kill(hive.nodes[1], " member /", "STOP")
    with hive.nodes[0].wrapped("squeue", NO_CONTROLLER):
        kill(hive.nodes[0], AGENT)
        log = f".launch/runs/{run}/record/slurm.log"
        until(lambda: "no agent starts yet: squeue:" in hive.ssh("cat", log), "word of the silence")
        assert len(begins(hive)) == 4
    until(lambda: len(begins(hive)) == 6, "a third attempt")
    until_steps(hive)
    assert beside(hive) == []
    assert "sleep" in steps(hive)
    hive.ssh("touch", "enough")
    until(lambda: client.summary(run)["state"] == "succeeded", "the end")
    until(lambda: not left(hive), "both nodes to be empty")


@pytest.mark.long
def test_a_stop_while_a_member_is_left_ends_the_job_at_once(client, hive):
    """No attempt is there to save anything, and no grace is waited for; Slurm ends the member with its job."""
    run = detached(client, hive, "--set", "stop_grace_s=120")
    kill(hive.nodes[1], " member /", "STOP")
    with hive.nodes[0].wrapped("squeue", NO_CONTROLLER):
        kill(hive.nodes[0], AGENT)
        log = f".launch/runs/{run}/record/slurm.log"
        until(lambda: "no agent starts yet: squeue:" in hive.ssh("cat", log), "word of the silence")
        began = time.monotonic()
        assert "stopped: by-user" in client.ok("stop", run)
        assert time.monotonic() - began < 60
    assert len(begins(hive)) == 2
    until(lambda: not left(hive), "both nodes to be empty")


def until_steps(cluster):
    """Wait until the last 40 lines of the ledger are steps."""
    until(lambda: all(words.isdigit() for *_, words in ledger(cluster)[-40:]), "40 more steps")


def steps(cluster):
    """The names of the steps of all jobs."""
    return cluster.ssh("squeue", "--steps", "--noheader", "-o", "%j").split()


def begins(cluster):
    """Where each start of each rank has begun."""
    return [word for *_, word in ledger(cluster) if word.startswith("from")]


def kill(node, pattern, by="KILL"):
    """Send a signal to the processes of a node whose command line has a pattern."""
    node.enter("kill", f"-{by}", *node.enter("pgrep", "-u", "ada", "-f", pattern).split())


def attempts(client, run):
    """The states of a run's attempts, by its copy here."""
    client.ok("logs", run)
    folders = sorted((client.project / "runs" / run).glob("[0-9]*/state.json"))
    return [json.loads(path.read_text()) for path in folders][1:]


@pytest.mark.long
def test_a_node_that_is_lost_takes_the_attempt_with_it_and_the_run_goes_on(client, hive):
    """What the other node says of it counts less than Slurm's word, and the job's next start resumes."""
    run = detached(client, hive)
    job = hive.controller.enter("squeue", "--noheader", "-o", "%i").strip()
    hive.nodes[1].kill()
    hive.until_state(job, "PENDING", timeout=60)
    hive.nodes[1].up()
    until(lambda: hive.is_idle() and not left(hive), "two nodes, and the end of the job's script", 60)
    # Sooner than after Slurm's two minutes, and not so soon that it still ends the first start's steps.
    hive.controller.enter("scontrol", "update", f"JobId={job}", "StartTime=now+8")
    until(lambda: len(begins(hive)) == 4, "a second attempt", 90)
    hive.ssh("touch", "enough")
    until(lambda: client.summary(run)["state"] == "succeeded", "the end")
    lost, done = attempts(client, run)
    assert (lost["state"], lost["reason"]) == ("resuming", "host-lost")
    assert "node failure" in lost["evidence"]["line"].lower()  # either of two that Slurm says
    assert done["reason"] == "completed"
    assert begins(hive)[2] == begins(hive)[3] != "from 0"
