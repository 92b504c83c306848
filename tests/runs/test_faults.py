"""Every fault of `launch drill`, and those that need root, on a machine with an engine: natively and in a container.

`make faults` runs all of them and writes the table; CI runs a dozen. The witness is the job's ledger, which a plain ssh
links out of the drill's reach before the drill begins, and `ps`, `ls` and the docker CLI.
"""

import json
import os
import subprocess
import time

import pytest
from testbed import trainer
from testbed.client import REPOSITORY

from launcher.values.drill import AT, FAULTS, INTERVAL, STEPS

pytestmark = pytest.mark.testbed

MOMENTS = (3, 10, AT, 36)
"""Before the first checkpoint, while one is saved, between two, near the end."""
HOSTS = ("native", "docker")
IS_WHOLE = os.environ.get("LAUNCH_FAULTS") == "all"
IN_CI = {
    ("native", "trainer-killed", 10),
    ("native", "agent-killed", 3),
    ("native", "all-killed", AT),
    ("native", "link-cut", 10),
    ("native", "checkpoint-torn", AT),
    ("native", "folder-full", 36),
    ("docker", "agent-killed", AT),
    ("docker", "container-removed", 10),
    ("docker", "client-killed", AT),
    ("docker", "port-taken", AT),
}
ROWS = [
    (host, fault, at)
    for host in HOSTS
    for fault in FAULTS
    for at in MOMENTS
    if host in fault.runtimes and fault.first <= at <= fault.last
    if IS_WHOLE or (host, fault.name, at) in IN_CI
]
ROOT_ROWS = [
    *[("native", fault, at) for fault in ("machine-killed", "disk-full") for at in MOMENTS],
    *[("docker", fault, at) for fault in ("machine-killed", "engine-killed", "engine-restarted") for at in MOMENTS],
]  # fmt: skip
ROOT_ROWS = [
    row
    for row in ROOT_ROWS
    if IS_WHOLE or row in {("native", "disk-full", 10), ("docker", "engine-killed", AT)}
]
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
