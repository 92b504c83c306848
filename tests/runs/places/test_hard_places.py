"""Runs in places that are full, long, gone or crowded."""

import json
import os
import shutil
import signal
import stat
import subprocess

import pytest
from testbed.client import is_gone, processes_of, until

from launcher.backends.machine.native_runtime import Native
from launcher.copy.request import Request
from launcher.runs.launch.launching import launch

pytestmark = pytest.mark.slow(reason="runs on full disks and with long paths, each from start to end")

FILLS_THE_DISK = """
import os, sys, time
import launcher_worker as worker
root = sys.argv[1]
worker.log(1, loss=1.0)
with open(sys.argv[2], "w") as file:
    file.write(str(os.getpid()))
with open(os.path.join(root, "filler"), "wb", buffering=0) as file:
    for size in (1 << 20, 1 << 12, 1):
        try:
            while True:
                file.write(b"x" * size)
        except OSError:
            pass
for number in range(2000):
    print("line", number)
for step in range(2, 200):
    worker.log(step, loss=1.0 / step)
worker.done(199)
"""


@pytest.mark.testbed
def test_a_disk_that_is_full_for_a_while_costs_neither_run_nor_record(client, small_disk):
    """The training ends while the disk is full; the end waits for room, and then nothing of it is missing."""
    subprocess.run(["mount", "-o", "remount,size=1200m", small_disk], check=True)  # the gate asks for 1 GB
    (client.project / "launch.toml").write_text(f'[hosts.local]\nroot = "{small_disk}"\n')
    client.script(FILLS_THE_DISK)
    run = client.detached("--", "python", "train.py", str(small_disk), str(client.home / "pid"))
    folder = small_disk / "runs" / run
    pid = client.home / "pid"
    until(lambda: pid.exists() and is_gone(int(pid.read_text() or os.getpid())), "the training's own end")
    assert "running" in (folder / "record" / "0002" / "state.json").read_text()
    (small_disk / "filler").unlink()
    until(lambda: client.summary(run)["state"] == "succeeded", "the end on record")
    assert (folder / "record" / "0002" / "log.txt").read_text() == "".join(f"line {n}\n" for n in range(2000))
    events = [
        json.loads(line) for line in (folder / "record" / "0002" / "events.jsonl").read_text().splitlines()
    ]
    assert [event["step"] for event in events if event["kind"] == "metric"] == list(range(1, 200))


def test_a_run_whose_folder_is_removed_ends(client):
    """Nothing keeps running for a run that is no more."""
    client.script("import time; time.sleep(10000)")
    run = client.detached("--", "python", "train.py")
    folder = client.home / ".launch" / "runs" / run
    assert processes_of(folder)
    while folder.exists():  # its agent may write a file meanwhile
        shutil.rmtree(folder, ignore_errors=True)
    until(lambda: not processes_of(folder), "the end of all its processes")


def test_a_long_temporary_folder_is_no_hindrance(client, tmp_path, monkeypatch):
    """A Unix socket's path holds a hundred bytes; TMPDIR may be longer."""
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    client.script("import launcher_worker as worker; worker.log(1, loss=0.5); worker.done(1)")
    client.ok("--", "python", "train.py")
    metric = json.loads(client.ok("metrics", "--json").splitlines()[0])
    assert (metric["name"], metric["value"]) == ("loss", 0.5)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_ctrl_c_in_the_moment_of_the_start_detaches_and_says_so(client, monkeypatch, number):
    """The run has begun, or will have in a moment: to say that nothing is left would be a lie."""
    from launcher.cli.follow.plain_view import PlainView

    client.script("import time; time.sleep(10000)")
    monkeypatch.chdir(client.project)
    monkeypatch.setenv("HOME", str(client.home))
    real = Native.start

    def start(runtime, run):
        signal.raise_signal(number)
        real(runtime, run)

    monkeypatch.setattr(Native, "start", start)
    begun = launch(Request(words=["python", "train.py"]), PlainView())
    begun.client.close()
    assert begun.interrupts.release() == number
    until(lambda: client.summary(begun.local_copy.run)["state"] == "running", "the training")
    client.ok("stop", "--now", begun.local_copy.run)


SMI = """#!/bin/sh
cat <<'END'
0, GPU-11111111-aaaa, Tesla P100-PCIE-16GB, 6.0, 16384, 535.104.05
1, GPU-22222222-bbbb, NVIDIA TITAN RTX, 7.5, 24576, 535.104.05
END
"""


@pytest.mark.parametrize(
    ("profile", "visible"),
    [("titan_rtx", "GPU-22222222-bbbb"), pytest.param("cpu", "", marks=pytest.mark.long)],
)
def test_a_job_sees_the_card_of_its_profile_alone(client, monkeypatch, tmp_path, profile, visible):
    """On a host with several cards the job gets the one that was planned for; without one, none."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    client.script(
        "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'], sep='|')"
    )
    client.ok("--profile", profile, "--", "python", "train.py")
    assert client.ok("logs") == f"{visible}|PCI_BUS_ID\n"


@pytest.mark.parametrize(
    "written",
    [pytest.param(".", marks=pytest.mark.long), pytest.param("../data", marks=pytest.mark.long), "data/"],
)
def test_a_folder_of_data_is_found_however_its_path_is_written(client, written):
    """The script is told where its data lies on the host; a path may end in a dot or a slash."""
    for folder in (client.project, client.project / "data", client.project.parent / "data"):
        folder.mkdir(exist_ok=True)
        (folder / "train.jsonl").write_text("one\n")
    client.script(
        "import os, launcher_worker as worker\n"
        "print(sorted(os.listdir(worker.knobs().data['train'])))\nworker.done(1)"
    )
    client.script(
        f'name = "data"\ncommand = ["python", "train.py"]\ndata.train = {json.dumps(written)}\n', "job.toml"
    )
    client.ok("--job", "job.toml")
    assert "train.jsonl" in client.ok("logs")
