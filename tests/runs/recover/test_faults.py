"""Every fault of `launch drill`, and those that need root, on a machine with an engine: natively and in a container.

`make faults` runs all of them and writes the table; CI runs a dozen. The witness is the job's ledger, which a plain ssh
links out of the drill's reach before the drill begins, and `ps`, `ls` and the docker CLI.
"""

import itertools
import json
import os
import subprocess
import time

import pytest
from testbed import trainer
from testbed.client import REPOSITORY, until

from launcher.drill.drill_outcome import AT, FAULTS, INTERVAL, STEPS

pytestmark = pytest.mark.testbed

MOMENTS = (3, 10, AT, 36)
"""Before the first checkpoint, while one is saved, between two, near the end."""
ROOT_MOMENTS = (3, 10, AT, 30)
"""What root does comes over its own ssh, and so a little later."""
HOSTS = ("native", "docker")
IS_WHOLE = os.environ.get("LAUNCH_FAULTS") == "all"
IN_CI = {
    ("native", "checkpoint-torn", AT),
}
ROWS = [
    (host, fault, at)
    for host in HOSTS
    for fault in FAULTS
    for at in MOMENTS
    if host in fault.runtimes and fault.first <= at
    if IS_WHOLE or (host, fault.name, at) in IN_CI
]
ROOT_ROWS = [
    ("native", fault, at)
    for fault in ("machine-killed", "clock-forward", "clock-back")
    for at in ROOT_MOMENTS
] + [
    ("native", "disk-full", at) for at in (11, 22, 33)  # once there are two checkpoints, one of which can go
] + [
    ("docker", fault, at) for fault in ("machine-killed", "engine-killed", "engine-restarted") for at in ROOT_MOMENTS
]  # fmt: skip
IN_CI_BY_ROOT = {("docker", "engine-killed", AT)}
JOB = REPOSITORY / "jobs" / "drill.toml"
KEPT = "kept.jsonl"


@pytest.fixture
def box(client, engine):
    """The engine's machine, named `native` and `docker` in the client's project by the runtime that its runs use."""
    machine = engine.machine
    base = '[hosts.docker.build]\nbase = "launch-testbed/python:bookworm"\n'
    tables = [machine.table(host, user="ada", runtime=host) for host in HOSTS]
    (client.project / "launch.toml").write_text("\n".join([*tables, base]))
    machine.ssh("sh", "-c", f"rm -rf {KEPT} .launch/cache/drill-*", check=False)
    return engine


def names(row):
    host, fault, at = row
    return f"{host}-{getattr(fault, 'name', fault)}@{at}"


@pytest.mark.parametrize("row", ROWS, ids=names)
def test_a_fault_of_the_drill(client, box, tmp_path, record_property, row):
    """The drill says that it came out as stated, and the witness says the same."""
    host, fault, at = row
    machine = box.machine
    keep = f"turns=0; until ln .launch/cache/drill-*/ledger.jsonl {KEPT} 2>/dev/null || [ $turns -ge 600 ]; do turns=$((turns + 1)); sleep 0.1; done"
    keeping = subprocess.Popen([*machine.ssh_words(), f"sh -c '{keep}'"], stdin=subprocess.DEVNULL)
    before = time.monotonic()
    done = client.run("drill", "--host", host, "--fault", f"{fault.name}@{at}", "--json", timeout=300)
    took_s = time.monotonic() - before
    keeping.wait(70)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    (told,) = said["rows"]
    assert (said["runtime"], told["result"]) == (host, "ok"), told
    again = judged(machine, tmp_path, fault.reason, fault.intervals * INTERVAL)
    assert told["steps_again"] == again
    assert left(box) == []
    assert (
        machine.ssh("sh", "-c", "ls -d .launch/runs/*-drill-* .launch/cache/drill-* 2>/dev/null", check=False)
        == ""
    )
    record_property("fault", f"{fault.title}, step {at}")
    record_property("where", host)
    record_property("class", told["failure"] or "-")
    record_property("remedy", told["remedy"] or "-")
    record_property("again", str(again))
    record_property("silent", "-" if told["silent_s"] is None else f"{told['silent_s']:.1f} s")
    record_property("left", "0")
    record_property("took", f"{took_s:.0f} s")


def judged(machine, tmp_path, reason, most_again):
    """Read the ledger that was linked away by plain ssh, and judge it; return how many steps were done once more."""
    ledger, model = tmp_path / "samples", tmp_path / "model"
    ledger.write_text(machine.ssh("cat", KEPT))
    lines = trainer.read(ledger)
    assert sum("hurt" in line for line in lines) == 1, "the fault came once"
    if reason is not None:
        assert not any("end" in line for line in lines)
        for done in trainer.attempts(ledger):
            assert done == list(range(done[0], done[0] + len(done)))
        return 0
    (end,) = [line for line in lines if "end" in line]
    model.write_text(end["model"])
    return trainer.judge(ledger, model, STEPS, most_again)


def left(box):
    """What is still there of any run: processes by the machine's own ps, containers by the docker CLI."""
    lines = box.machine.ssh("ps", "-eo", "args").splitlines()
    marks = ("supervise ", "keep /", "contain /", "drill.py")
    containers = box.docker("ps", "--all", "--format", "{{.Names}}").split()
    return [
        *(line for line in lines if any(mark in line for mark in marks) and "ps -eo" not in line),
        *containers,
    ]


class Hurt:
    """A run of the drill's job that root hurts on its machine."""

    def __init__(self, client, box, host, at):
        """Launch it and wait for the step."""
        self.client, self.box, self.machine = client, box, box.machine
        ledger = "/home/ada/hurt" if host == "native" else "hurt"
        self.ledger = "hurt/ledger.jsonl" if host == "native" else ".launch/cache/hurt/ledger.jsonl"
        self.machine.ssh("rm", "-rf", os.path.dirname(self.ledger))
        told = (
            "--set",
            f"settings.ledger={json.dumps(ledger)}",
            "--set",
            "settings.step_s=0.2",
            "--profile",
            "cpu",
        )
        self.run = client.detached("--host", host, "--job", str(JOB), *told)
        until(lambda: self.step() >= at, f"step {at}", every=0.1)

    def step(self):
        """How many steps the ledger has."""
        said = self.machine.ssh("grep", "-c", '"step"', self.ledger, check=False)
        return int(said or 0)

    def mark(self):
        """Note in the ledger that it was hurt."""
        self.machine.ssh("sh", "-c", f'echo \'{{"hurt": "by root"}}\' >> {self.ledger}')

    def end(self):
        """Follow it, as a person would; return the classes of its failures on record, and remove it."""
        out = self.client.seen("attach", self.run, timeout=200)
        assert "succeeded" in out, out
        self.machine.ssh("ln", self.ledger, KEPT)
        states = [json.loads(path.read_text()) for path in (self.client.runs / self.run).glob("*/state.json")]
        self.client.ok("rm", "--force", self.run)
        return [state["failure"]["class"] for state in states if state.get("failure")]


def kill_machine(hurt):
    """Power off, power on."""
    hurt.machine.kill()
    hurt.machine.up()
    hurt.box.wait()


def kill_engine(hurt):
    """Engine and containerd get SIGKILL, and come back."""
    hurt.box.kill(has_containerd=True)
    hurt.box.start()


def restart_engine(hurt):
    """As an upgrade does."""
    hurt.box.stop_gracefully()
    hurt.box.start()


def fill_disk(hurt):
    """The disk of the runs has no room for a third checkpoint, of 200 kB. It has some for what the agent writes meanwhile."""
    used, block = (int(word) for word in hurt.machine.enter("stat", "-f", "-c", "%b %S", SMALL).split())
    free = int(hurt.machine.enter("stat", "-f", "-c", "%f", SMALL))
    hurt.machine.enter("mount", "-o", f"remount,size={(used - free) * block + 150_000}", SMALL)


def set_clock(offset):
    """Let the wall clock of every Python on the machine jump, by seconds. The times of files do not."""
    return lambda hurt: hurt.machine.ssh("sh", "-c", f"echo {offset} > clock")


BY_ROOT = {
    "machine-killed": kill_machine,
    "engine-killed": kill_engine,
    "engine-restarted": restart_engine,
    "disk-full": fill_disk,
    "clock-forward": set_clock(86400),
    "clock-back": set_clock(-86400),
}
SMALL = "/mnt"
CLOCK = """
import time


def _jumping(real, unit):
    def now():
        try:
            with open("/home/ada/clock") as file:
                return real() + int(file.read()) * unit
        except (OSError, ValueError):
            return real()

    return now


time.time, time.time_ns = _jumping(time.time, 1), _jumping(time.time_ns, 10**9)
"""
"""Every Python of the machine reads this at its start. A namespace cannot have a wall clock of its own."""


@pytest.fixture
def prepared(box, client, row):
    """The machine as a row needs it: with runs on a small disk, or with a clock that can jump."""
    machine, fault = box.machine, row[1]
    if fault == "disk-full":
        machine.enter(
            "mount", "-t", "tmpfs", "-o", "size=1200m,mode=1777", "tmpfs", SMALL
        )  # the gate asks for 1 GB
        text = (client.project / "launch.toml").read_text()
        (client.project / "launch.toml").write_text(
            text.replace("[hosts.native]", f'[hosts.native]\nroot = "{SMALL}/launch"')
        )
    custom = next((machine.folder / "etc").glob("python3.*")) / "sitecustomize.py"
    kept = custom.read_text() if custom.exists() else ""
    if fault.startswith("clock"):
        custom.write_text(CLOCK)
    yield box
    if fault == "disk-full":
        machine.enter("umount", "--lazy", SMALL)
    custom.write_text(kept)
    machine.ssh("rm", "-f", "clock")


@pytest.mark.parametrize("row", [row for row in ROOT_ROWS if IS_WHOLE or row in IN_CI_BY_ROOT], ids=names)
def test_a_fault_that_needs_root(client, prepared, tmp_path, record_property, row):
    """The run goes on and succeeds, at most one interval is trained again, and nothing is left."""
    host, fault, at = row
    before = time.monotonic()
    hurt = Hurt(client, prepared, host, at)
    BY_ROOT[fault](hurt)
    hurt.mark()
    found = hurt.end()
    took_s = time.monotonic() - before
    again = judged(hurt.machine, tmp_path, None, INTERVAL)
    assert left(prepared) == []
    assert found == (["disk-full"] if fault == "disk-full" else [])
    lines = trainer.read(tmp_path / "samples")
    times = [line["time"] for line in lines if "time" in line]
    jumps = [later - earlier for earlier, later in itertools.pairwise(times) if abs(later - earlier) > 3600]
    assert len(jumps) == fault.startswith("clock"), "the clock jumped, as the training itself saw"
    assert sum("begin" in line for line in lines) == (1 if jumps else 2)
    record_property("fault", f"{fault}, step {at}")
    record_property("where", host)
    record_property("class", ", ".join(found) or "-")
    record_property("remedy", "-")
    record_property("again", str(again))
    record_property("silent", "-")
    record_property("left", "0")
    record_property("took", f"{took_s:.0f} s")
