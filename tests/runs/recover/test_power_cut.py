"""The power of a host is cut at a random moment of a launch and a training: its disk is a block device, and is turned back.

`make faults` cuts it 50 times. The witness is the trainer's ledger, which lies on another disk.
"""

import contextlib
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest
from testbed import trainer
from testbed.client import kill_all_of, missing, processes_of, until
from testbed.disk import Disk
from testbed.machine import Machine, remove_bridge
from testbed.missing_part import MissingPartError

CUTS = int(os.environ.get("LAUNCH_POWER_CUTS", "1"))
"""Of each file system; `make faults` asks for more."""
STEPS, INTERVAL = 20, 5
FILES = 300
JOB = f"""name = "cut"
command = ["python", "train.py", "LEDGER", "0.2"]
steps = {STEPS}
save_every_steps = {INTERVAL}
restart = true
batch.global = {trainer.GLOBAL_BATCH}
"""
NO_RUN, SUCCEEDED = "no run", "succeeded"
UNTRAINED = ("never-started", "code-damaged")
"""Why a run has failed whose files the disk had not got, nor those of the store."""


@pytest.fixture(scope="module", params=("ext4", pytest.param("xfs", marks=pytest.mark.long)))
def box(request):
    """A machine whose homes lie on a disk of its own."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    with contextlib.ExitStack() as stack:
        try:
            (folder / "disk").mkdir()
            disk = Disk(folder / "disk", request.param)
            stack.callback(disk.remove)
            machine = Machine("box", 60, folder / "box", homes=disk.at)
            machine.make()
            machine.up()
        except MissingPartError as error:
            missing(str(error))
        stack.callback(remove_bridge)
        stack.callback(machine.kill)
        yield machine, disk, request.param


def cut(machine, disk):
    """Cut the power and boot: what was in memory alone is gone."""
    disk.copy()
    machine.kill()
    disk.turn_back()
    machine.up()


@pytest.fixture
def ledger():
    """A ledger on this machine's own disk, to which the machine's user can write."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o777)
    yield folder / "ledger"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def files(client, seed):
    """A project of many files, of which each cut has some that the host has never seen."""
    (client.project / "launch.toml").write_text("")
    for number in range(FILES):
        words = f"{number} {seed if number % 3 == 0 else ''}\n" * (1 + number % 50) * 8
        (client.project / f"module_{number}.py").write_text(f"# {words}".replace("\n", "\n# "))


def state_of(client, run):
    """The state and the reason of a run, by `ps`."""
    row = client.summary(run)
    return row["state"], row["reason"]


@pytest.mark.long
@pytest.mark.testbed
@pytest.mark.slow(reason="boots a machine again and again")
@pytest.mark.parametrize("seed", range(CUTS))
def test_a_run_ends_well_or_says_why(client, box, ledger, tmp_path, record_property, seed):
    """Each step is trained on what was sent, or the run never was; nothing that did not happen is claimed."""
    machine, disk, kind = box
    moment_s = random.Random(f"{kind} {seed}").uniform(0.5, 4.0)
    files(client, seed)
    (client.project / "launch.toml").write_text(machine.table())
    client.script(trainer.source())
    (client.project / "job.toml").write_text(JOB.replace("LEDGER", str(ledger)))
    name = f"cut-{kind}-{seed}"
    launch = client.start("--host", "box", "--job", "./job.toml", "--name", name, "--detach")
    time.sleep(moment_s)
    cut(machine, disk)
    launch.send_signal(signal.SIGKILL)
    launch.wait()
    run = next(
        iter(machine.ssh("sh", "-c", f"ls .launch/runs 2>/dev/null | grep {name}", check=False).split()), None
    )
    mended = 0
    if run is None:
        assert not ledger.exists(), "a run that was not on record has trained"
        end = NO_RUN
    else:
        client.run("attach", run, "--host", "box", timeout=200)
        until(lambda: state_of(client, run)[0] in ("succeeded", "failed"), f"the end of {run}")
        end = judged(client, machine, ledger, tmp_path, run)
        mended = made_anew(client, run)
        client.ok("rm", "--force", "--host", "box", run)
    record_property("fault", f"power cut after {moment_s:.1f} s, {kind}")
    record_property("where", "native")
    record_property("class", "-" if end == SUCCEEDED else end)
    record_property("remedy", f"{mended} files made anew" if mended else "-")


@pytest.mark.testbed
@pytest.mark.slow(reason="boots a machine")
def test_what_has_succeeded_outlives_a_power_cut(client, box, ledger):
    """The outputs are on the disk before the end is on record: an empty model was `succeeded`."""
    machine, disk, kind = box
    (client.project / "launch.toml").write_text(machine.table())
    client.script(trainer.source())
    (client.project / "job.toml").write_text(JOB.replace("LEDGER", str(ledger)))
    run = client.detached(
        "--host", "box", "--job", "./job.toml", "--set", "steps=2", "--name", f"kept-{kind}"
    )
    ended = f".launch/runs/{run}/record/0002/state.json"
    until(lambda: '"succeeded"' in machine.ssh("cat", ended, check=False), "the end")
    cut(machine, disk)
    assert '"succeeded"' in machine.ssh("cat", ended)
    assert machine.ssh("cat", f".launch/runs/{run}/work/artifacts/model") == trainer.expected(2)
    client.ok("rm", "--force", "--host", "box", run)


def made_anew(client, run):
    """How many files of the code the host had to make anew."""
    events = [
        json.loads(line)
        for path in (client.runs / run).glob("*/events.jsonl")
        for line in path.read_text().splitlines()
        if not line.startswith("\0")  # of the attempt that was cut off
    ]
    return sum(event["values"]["code"]["mended"] for event in events if "code" in event.get("values", {}))


def judged(client, machine, ledger, tmp_path, run):
    """What became of a run that the disk has: all its steps, or an end that says why not."""
    state, reason = state_of(client, run)
    begun = [line for line in trainer.read(ledger) if "begin" in line]
    if state == "failed":
        assert reason in UNTRAINED, client.run("diagnose", run).stdout
        assert len(begun) <= 1, "nothing has run since the power was cut"
        return reason
    (tmp_path / "model").write_text(machine.ssh("cat", f".launch/runs/{run}/work/artifacts/model"))
    trainer.judge(ledger, tmp_path / "model", STEPS, STEPS)
    manifest = json.loads(machine.ssh("cat", f".launch/runs/{run}/control/manifest.json"))
    sums = machine.ssh(
        "sh", "-c", f"cd .launch/runs/{run}/work/code && sha256sum $(find . -type f -name '*.py')"
    )
    found = {path[2:]: digest for digest, path in (line.split() for line in sums.splitlines())}
    assert found == {path[5:]: entry["sha256"] for path, entry in manifest.items() if path.endswith(".py")}, (
        "the code is what was sent"
    )
    return SUCCEEDED


@pytest.fixture
def lost(client, tmp_path):
    """A run of this machine with two steps on its ledger, every process of which is gone, as if its host had been booted.

    The disk has lost the code: its files are empty.
    """
    (client.project / "job.toml").write_text(JOB.replace("LEDGER", str(tmp_path / "ledger")))
    client.script(trainer.source())
    run = client.detached("--job", "./job.toml")
    folder = client.home / ".launch" / "runs" / run
    until(lambda: (folder / "control" / "settled").exists(), "the settling")
    until(lambda: len(trainer.read(tmp_path / "ledger")) > 2, "two steps")
    kill_all_of(folder)
    until(lambda: not processes_of(folder), "the end of its processes")
    (folder / "control" / "settled").unlink()
    prepared = folder / "control" / "prepared.json"
    prepared.write_text(json.dumps({**json.loads(prepared.read_text()), "boot_id": "of another boot"}))
    script = folder / "work" / "code" / "train.py"
    script.write_text("")
    os.utime(
        folder / "control" / "manifest.json", (time.time() + 60,) * 2
    )  # the job has not changed it since
    return run


def test_an_empty_script_is_made_anew_and_never_a_success(client, lost, tmp_path):
    """It ended as `succeeded`, exit 0, with two of 20 steps."""
    assert "1 of its files were made again" in client.seen("attach", lost)
    assert made_anew(client, lost) == 1
    model = client.home / ".launch" / "runs" / lost / "work" / "artifacts" / "model"
    trainer.judge(tmp_path / "ledger", model, STEPS, STEPS)


@pytest.mark.long
def test_code_that_the_store_lost_too_is_never_trained(client, lost, tmp_path):
    """The end says what is lost, and the next command."""
    manifest = json.loads((client.home / ".launch" / "runs" / lost / "control" / "manifest.json").read_text())
    digest = manifest["code/train.py"]["sha256"]
    (client.home / ".launch" / "store" / "files" / digest[:2] / digest).unlink()
    before = (tmp_path / "ledger").read_text()
    done = client.run("attach", lost)
    assert done.returncode == 1, done.stdout + done.stderr
    assert state_of(client, lost) == ("failed", "code-damaged")
    assert "code/train.py" in done.stdout + done.stderr
    assert f"launch rerun {lost}" in done.stdout + done.stderr
    assert (tmp_path / "ledger").read_text() == before


@pytest.mark.long
@pytest.mark.testbed
def test_the_code_of_a_container_is_made_anew_by_its_host(client, engine, tmp_path):
    """A container does not see the store."""
    machine = engine.machine
    base = '[hosts.dock.build]\nbase = "launch-testbed/python:bookworm"\n'
    table = machine.table("dock", user="ada", runtime="docker")
    (client.project / "launch.toml").write_text(f"{table}\n{base}")
    (client.project / "job.toml").write_text(JOB.replace("LEDGER", "/home/ada/.launch/cache/ledger"))
    machine.ssh("rm", "-f", ".launch/cache/ledger")
    client.script(trainer.source())
    run = client.detached("--host", "dock", "--job", "./job.toml")
    control, code = f".launch/runs/{run}/control", f".launch/runs/{run}/work/code"
    until(lambda: machine.ssh("sh", "-c", f"ls {control}/settled", check=False), "the settling")
    until(lambda: '"step"' in machine.ssh("cat", ".launch/cache/ledger", check=False), "a step")
    engine.docker("kill", *engine.docker("ps", "--quiet").split())
    boot = json.loads(machine.ssh("cat", f"{control}/prepared.json"))["boot_id"]
    machine.ssh("sh", "-c", f"rm {control}/settled && sed -i s/{boot}/another/ {control}/prepared.json")
    machine.ssh("sh", "-c", f": > {code}/train.py && touch -d 2099-01-01 {control}/manifest.json")
    client.ok("attach", run)
    for name in ("cache/ledger", f"runs/{run}/work/artifacts/model"):
        (tmp_path / Path(name).name).write_text(machine.ssh("cat", f".launch/{name}"))
    trainer.judge(tmp_path / "ledger", tmp_path / "model", STEPS, STEPS)
    client.ok("rm", "--force", run)
