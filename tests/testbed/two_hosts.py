"""Two hosts for one client: an sshd with another user, and this machine; and a training that both can do, step by step.

The witness is a ledger that the training writes outside of its run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from testbed.client import Client, processes_of, until
from testbed.kept import give_agent, keep_agent
from testbed.sshd import SshHost

TRAIN = """
import os, time
import launcher_worker as worker
found = worker.resume_from()
plan = worker.knobs()
weight = float(open(os.path.join(found, "weights")).read()) if found else 1.0
first = int(found.rsplit("-", 1)[1]) + 1 if found else 1
data = open(plan.data["train"]).read().split()
for step in range(first, {steps} + 1):
    sample = data[(step * plan.split.global_batch) % len(data)]
    weight = weight * 0.9 + float(sample) * 0.01
    with open({ledger!r}, "a") as file:
        print(plan.run, step, sample, repr(weight), file=file)
    worker.log(step, loss=weight)
    worker.save(step, lambda folder: open(os.path.join(folder, "weights"), "w").write(repr(weight)))
    if worker.stopping(): raise SystemExit(0)
    time.sleep({pause} if found or step < 5 else {later})
open(os.path.join(plan.artifacts, "weights"), "w").write(repr(weight))
worker.done({steps})
"""
STEPS = 12


class Two(NamedTuple):
    """Two hosts: a client, the roots by host, and the ledger that trainings write outside of their runs."""

    client: Client
    roots: dict[str, Path]
    path: Path

    def ledger(self):
        """(run, step, sample, weight) of each step, by the training's own word."""
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def started(self, host="A", pause=0.4, later=None, stops=True):
        """A run in the middle of its work; from step 5 on it takes `later` seconds a step where it has begun.

        One that does not stop when it is asked to goes on to its end.
        """
        text = TRAIN.format(ledger=str(self.path), pause=pause, later=later or pause, steps=STEPS)
        if not stops:
            text = text.replace("if worker.stopping(): raise SystemExit(0)", "")
            text = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{text}"
        (self.client.project / "train.py").write_text(text)
        run = self.client.detached("--host", host, "--job", "job.toml")
        until(lambda: len(self.ledger()) >= 4, "four steps")
        return run

    def runs_on(self, host):
        """States of the runs below a root by id, by the files alone."""
        found = {}
        for run in (self.roots[host] / "runs").glob("[0-9]*"):
            states = sorted((run / "record").glob("[0-9]*/state.json"))
            found[run.name] = json.loads(states[-1].read_text())["state"] if states else None
        return found

    def everywhere(self):
        """The states of all runs, by id."""
        return {**self.runs_on("A"), **self.runs_on("local")}

    def judge(self):
        """The last word on each step gives the weights of an unbroken run; one run has succeeded, with these weights."""
        last = {int(step): (sample, weight) for _, step, sample, weight in self.ledger()}
        assert sorted(last) == [*range(1, STEPS + 1)]
        weight, data = 1.0, [number % 7 for number in range(50)]
        for step in range(1, STEPS + 1):
            weight = weight * 0.9 + float(data[(step * 4) % 50]) * 0.01
            assert last[step] == (str(data[(step * 4) % 50]), repr(weight))
        assert [*self.everywhere().values()].count("succeeded") == 1
        finals = [path for root in self.roots.values() for path in root.glob("runs/*/work/artifacts/weights")]
        assert [path.read_text() for path in finals] == [repr(weight)]


def killed_after(process: subprocess.Popen[str], stage: str, wait_s: float = 0.0) -> None:
    """Kill a client `wait_s` seconds after a stage of it is done."""
    assert process.stderr is not None
    for line in iter(process.stderr.readline, ""):
        if f"✓ {stage}" in line:
            break
    time.sleep(wait_s)
    process.kill()
    process.communicate()


@contextlib.contextmanager
def two_hosts(client: Client, ssh_host: SshHost, more: str = "") -> Iterator[Two]:
    """Yield an SSH host `A`, and this machine, for a job with data; `more` are keys of it. All that trains is ended."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    for name in ("A", "C"):
        (folder / name).mkdir()
        shutil.chown(folder / name, ssh_host.user)
        give_agent(ssh_host, folder / name)
    (folder / "ledger").touch()
    (folder / "ledger").chmod(0o666)
    (client.project / "launch.toml").write_text(ssh_host.table(root=str(folder / "A")))
    (client.project / "numbers.txt").write_text(" ".join(str(number % 7) for number in range(50)))
    (client.project / "job.toml").write_text(
        'name = "walk"\ncommand = ["python", "train.py"]\nsave_every_steps = 1\n'
        f'steps = {STEPS}\n{more}\n[data]\ntrain = "./numbers.txt"\n[batch]\nglobal = 4\n'
    )
    roots = {"A": folder / "A", "local": client.home / ".launch"}
    yield Two(client, roots, folder / "ledger")
    for run in (path for root in roots.values() for path in (root / "runs").glob("[0-9]*")):
        for pid in processes_of(run):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    keep_agent(ssh_host, folder / "A")
    shutil.rmtree(folder, ignore_errors=True)
