"""Runs on a real Slurm cluster: from a login node to a compute node and back, judged by Slurm's own programs."""

import hashlib
import json
import os
import shlex

import pytest
from testbed.client import missing, until
from testbed.kept import CLEAR_ROOT
from testbed.missing_part import MissingPartError
from testbed.slurm_cluster import job_name, slurm_cluster

pytestmark = pytest.mark.testbed

STEPS = """
import os, sys, time
import launcher_worker as worker
resumed = worker.resume_from()
begin = int(open(os.path.join(resumed, "step")).read()) if resumed else 0
ledger = os.path.expanduser("~/ledger")
def note(word):
    with open(ledger, "a") as file:
        file.write(f"{word} {os.uname().nodename} {os.getpid()}\\n")
note(f"from {begin}")
for step in range(begin + 1, 1001):
    time.sleep(0.05)
    worker.log(step, loss=1.0 / step)
    note(step)
    if step % 5 == 0:
        worker.save(step, lambda folder: open(os.path.join(folder, "step"), "w").write(str(step)))
    if os.path.exists(os.path.expanduser("~/enough")):
        break
worker.done(step)
"""


@pytest.fixture
def hive(client, slurm):
    """The cluster, named `hive` in the client's project, whose job trains on a CPU until ~/enough is there."""
    table = slurm.logins[0].table("hive")
    (client.project / "launch.toml").write_text(f'{table}kind = "slurm"\npartition = "batch"\n')
    slurm.ssh("sh", "-c", f"rm -rf enough ledger; {CLEAR_ROOT}")
    client.script(STEPS)
    return slurm


def ledger(cluster):
    return cluster.ssh("cat", "ledger", check=False).splitlines()


@pytest.mark.long
def test_a_run_trains_on_a_compute_node(client, hive):
    """Its steps come home, and the job has completed in Slurm."""
    started = client.start("--host", "hive", "--profile", "cpu", "--json", "--", "python", "train.py")
    until(lambda: len(ledger(hive)) > 10, "steps")
    hive.ssh("touch", "enough")
    out, err = started.communicate(timeout=180)
    assert started.returncode == 0, out + err
    events = [json.loads(line) for line in out.splitlines()]
    assert events[-1]["state"] == "succeeded", out + err
    assert ledger(hive)[0].split()[:3] == ["from", "0", "node1"]
    (row,) = json.loads(client.ok("ps", "--json"))["runs"]
    asked = ("--states=all", "-o", "%i", f"--name={job_name(row['run'])}")
    assert hive.ssh("squeue", "--me", "-h", *asked).split() == [row["job_id"]]


@pytest.mark.long
def test_the_jobs_number_is_in_what_a_script_reads(client, hive):
    """Of a launch that detaches and of `ps`, in its queue and after its end; it is the number that Slurm has."""
    words = ("--host", "hive", "--profile", "cpu", "--set", 'slurm.extra=["--hold"]', "--json")
    lines = client.ok(*words, "--detach", "--", "python", "train.py").splitlines()
    started = next(line for line in map(json.loads, lines) if line["kind"] == "started")
    named = hive.ssh("squeue", "--me", "-h", "-o", "%i", f"--name={job_name(started['run'])}").split()
    assert named == [started["job_id"]]
    (row,) = json.loads(client.ok("ps", "--json", "--host", "hive"))["runs"]
    assert (row["run"], row["job"], row["job_id"], row["state"]) == (
        started["run"],
        "train",
        *named,
        "reserved",
    )
    client.ok("stop", "--now", started["run"])
    assert client.summary(started["run"], "--host", "hive")["job_id"] == named[0]
    client.ok("logs", started["run"])  # brings the end home: the host is not asked any more
    (client.project / "launch.toml").unlink()
    row = client.summary(started["run"])
    assert (row["state"], row["job_id"], row["took_s"]) == ("stopped", named[0], 0.0)


NO_BF16 = """
import launcher_worker as worker
if worker.knobs().precision.mode.startswith("bf16"):
    raise ValueError("Your setup doesn't support bf16/gpu")
worker.resume_from()
worker.log(1, loss=0.5)
worker.done(1)
"""


@pytest.mark.long
def test_what_a_card_has_shown_through_one_login_node_holds_through_the_other(client, hive):
    """The next plan lists the precision that failed behind one that did not."""
    other = hive.logins[1].table("beside", kind="slurm")
    client.script((client.project / "launch.toml").read_text() + other, "launch.toml")
    client.script(NO_BF16)
    words = ("--profile", "a100_40gb", "--set", "model=hub:org/name", "--json")

    def planned(host):
        shown = json.loads(client.ok("--host", host, *words, "--dry-run", "--", "python", "train.py"))
        codes = {one["code"] for one in shown["findings"]}
        return shown["plan"]["ladder"][0]["mode"], "precision-failed-before" in codes

    assert planned("beside")[0].startswith("bf16")
    with hive.nodes[0].carded("a100_40gb", "a100_40gb"), hive.nodes[1].carded("a100_40gb", "a100_40gb"):
        done = client.run("--host", "hive", *words, "--", "python", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("beside", "hive"):
        mode, is_noted = planned(host)
        assert not mode.startswith("bf16")
        assert is_noted
    places = hive.ssh("ls", ".launch/hosts").split()
    assert "slurm:testbed" in places


STAND_IN = """#!/bin/sh
# Writes down how it was started, and runs the rest as it is: no container.
{ pwd; printf '%s\\n' "$@" "$LAUNCH_SOCKET"; } >"$HOME/apptainer-$(uname -n)"
shift
while :; do
    case $1 in
        --nv) shift ;;
        --bind) shift 2 ;;
        --pwd) cd "$2" && shift 2 ;;
        *) break ;;
    esac
done
shift
exec "$@"
"""


@pytest.fixture
def image(hive):
    """An image on a cluster whose `apptainer` is a stand-in of ours: what it is told, not what a real one does with it."""
    hive.ssh("sh", "-c", f"mkdir -p bin; cat >bin/apptainer <<'EOF'\n{STAND_IN}EOF\nchmod +x bin/apptainer")
    home = hive.ssh("sh", "-c", "echo $HOME").strip()
    yield ("--set", "slurm.image=/shared/torch.sif", "--set", f"variables.PATH={home}/bin:/usr/bin:/bin")
    hive.ssh("sh", "-c", "rm -rf bin apptainer-*")


def told_of(cluster, node):
    """The folder, the words and the socket that a node's stand-in was started with."""
    folder, *words, socket = cluster.ssh("cat", f"apptainer-{node}").splitlines()
    return folder, words, socket


def test_a_command_in_an_image_is_started_by_the_line_that_a_dry_run_shows(client, hive, image):
    """With the paths of the run in it; its workers report through the socket, whose folder is bound."""
    hive.ssh("touch", "enough")
    client.script("torch\n", "requirements.txt")  # has what an environment would be made of
    words = ("--host", "hive", "--profile", "cpu", *image)
    shown = client.ok(*words, "--dry-run", "--", "python", "train.py")
    line = next(one for one in shown.splitlines() if one.startswith("  in image   "))
    done = client.run(*words, "--json", "--", "python", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [one for one in map(json.loads, done.stdout.splitlines()) if one["kind"] == "metric"]
    _, told, socket = told_of(hive, "node1")
    home = hive.ssh("sh", "-c", "echo $HOME").strip()
    (run,) = (path.name for path in client.runs.glob("2*"))
    places = {
        "{root}": f"{home}/.launch",
        "{code}": f"{home}/.launch/runs/{run}/work/code",
        "{socket}": os.path.dirname(socket),
    }
    expected = [
        places.get(word, word) for word in shlex.split(line.removeprefix("  in image   ").removesuffix(" …"))
    ]
    assert ["apptainer", *told] == [*expected, "python3", "train.py"]


@pytest.mark.long
def test_each_of_several_nodes_starts_its_command_in_the_image(client, hive, image):
    """With a socket of its own."""
    words = ("--host", "hive", "--profile", "cpu", "--set", "slurm.nodes=2", *image)
    done = client.run(*words, "--", "sh", "-c", "echo node $PET_NODE_RANK of $PET_NNODES")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"node 0 of 2", "node 1 of 2"} <= {*done.stdout.splitlines()}
    for node in ("node1", "node2"):
        _, told, socket = told_of(hive, node)
        assert told[-4:] == ["/shared/torch.sif", "sh", "-c", "echo node $PET_NODE_RANK of $PET_NNODES"]
        assert os.path.dirname(socket) in told


@pytest.mark.long
def test_a_node_without_apptainer_says_so(client, hive):
    """No image is needed for that."""
    words = ("--host", "hive", "--profile", "cpu", "--set", "slurm.image=/shared/torch.sif")
    done = client.run(*words, "--", "python", "train.py")
    assert done.returncode == 1
    assert "the host has no program 'apptainer'" in done.stderr
    assert 'modules = ["apptainer"]' in done.stderr


@pytest.mark.long
def test_a_batch_runs_on_a_cluster(client, hive):
    """Each item's job is submitted by an agent of its own, and judged at once by another that has just asked the queue."""
    hive.ssh("touch", "enough")
    client.script(
        'host = ["hive"]\nprofile = "cpu"\ncommand = ["python", "train.py", "{x}"]\n[matrix]\nx = [1, 2, 3]\n',
        "b.toml",
    )
    done = client.run("batch", "b.toml", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 items: 3 succeeded" in done.stderr


@pytest.mark.long
def test_all_of_a_run_comes_home_from_a_disk_that_shows_sizes_late(client):
    """Through FUSE the login node knows the old size of a file for a second; what a node wrote last is in the mirror too."""
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("the kernel has no FUSE, or not for this user")
    try:
        with slurm_cluster("fuse", name="late") as cluster:
            table = cluster.logins[0].table("hive")
            (client.project / "launch.toml").write_text(f'{table}kind = "slurm"\n')
            client.script(
                "import time, launcher_worker as worker\n"
                "for step in range(1, 6):\n    time.sleep(0.3)\n    worker.log(step, loss=1 / step)\n"
                "    print('line', step, flush=True)\nworker.done(5)\n"
            )
            for number in range(4):
                out = client.ok("--host", "hive", "--profile", "cpu", "--", "python3", "train.py")
                assert [line for line in out.splitlines() if line.startswith("line")][-1] == "line 5"
                run = max(client.runs.glob("2*"), key=os.path.getmtime)
                words = ["sha256sum", f".launch/runs/{run.name}/record/0002/log.txt"]
                digest = cluster.ssh(*words).split()[0]
                assert hashlib.sha256((run / "0002" / "log.txt").read_bytes()).hexdigest() == digest, number
                client.ok("rm", run.name)
                assert cluster.ssh("ls", "-A", ".launch/runs") == ""
    except MissingPartError as error:
        missing(str(error))
