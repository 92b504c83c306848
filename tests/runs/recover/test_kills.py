"""Trainer and agent killed at random, again and again: the samples are counted in a ledger outside of the run."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from testbed import trainer
from testbed.client import until

pytestmark = pytest.mark.slow(reason="kills a trainer and its agent again and again")

KILLS = int(os.environ.get("LAUNCH_KILLS", "10"))
"""In each place; `make kills` asks for more."""
EVERY = 5
JOB = 'name = "kills"\ncommand = ["python", "train.py", "{ledger}", "0"]\n'
SLOW = """
def train(step):
    if not os.path.exists(sys.argv[1] + ".enough"):
        time.sleep(0.02)
"""
"""Until the last kill; then nobody waits for the rest."""


class Here:
    """A run on this machine, under its keeper."""

    steps_a_kill = 100
    steps_an_agent = 0
    share = 0.5  # of the kills are the agent's

    def __init__(self, client) -> None:
        self.client = client
        self.ledger = client.home / "samples"
        self.root = client.home / ".launch"

    def launch(self, *settings):
        """Begin; return the run's id."""
        self.client.script(trainer.source(SLOW))
        (self.client.project / "job.toml").write_text(JOB.format(ledger=self.ledger))
        return self.client.detached("--job", "./job.toml", *settings)

    def processes(self):
        """Pid and command line of all processes."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                yield int(path.parent.name), path.read_bytes().decode("utf-8", "replace").replace("\0", " ")
            except OSError:  # gone meanwhile
                continue

    def kill(self, pid):
        """Kill it; return whether it was there."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def fetch(self, run, folder):
        """Bring ledger and model here; they are."""
        for path in (self.ledger, self.root / "runs" / run / "work" / "artifacts" / "model"):
            if path.exists():
                shutil.copy(path, folder)

    def hurry(self):
        """Let the rest go quickly."""
        Path(f"{self.ledger}.enough").touch()


class There:
    """A run in a container, which a machine's own engine brings back."""

    steps_a_kill = 400  # each look from outside takes longer
    steps_an_agent = 450  # ten seconds: a container that ran for less is brought back later and later
    share = 0.25

    def __init__(self, client, engine) -> None:
        self.client, self.engine = client, engine
        self.root = "/home/ada/.launch"
        self.ledger = f"{self.root}/cache/samples"  # outside of the run, and a container sees it

    def launch(self, *settings):
        """Begin; return the run's id."""
        table = self.engine.machine.table("dock", user="ada", runtime="docker")
        base = '[hosts.dock.build]\nbase = "launch-testbed/python:bookworm"\n'
        (self.client.project / "launch.toml").write_text(f"{table}\n{base}")
        self.client.script(trainer.source(SLOW))
        (self.client.project / "job.toml").write_text(JOB.format(ledger=self.ledger))
        self.engine.machine.ssh("rm", "-f", self.ledger, f"{self.ledger}.enough")
        return self.client.detached("--host", "dock", "--job", "./job.toml", *settings)

    def processes(self):
        """Pid and command line of all processes of the machine."""
        for line in self.engine.machine.ssh("ps", "-eo", "pid,args").splitlines()[1:]:
            pid, _, words = line.strip().partition(" ")
            yield int(pid), words

    def kill(self, pid):
        """Kill it; return whether it was there."""
        told = self.engine.machine.ssh("sh", "-c", f"kill -9 {pid} && echo killed", check=False)
        return "killed" in told

    def fetch(self, run, folder):
        """Bring ledger and model here, by plain ssh."""
        for path in (self.ledger, f"{self.root}/runs/{run}/work/artifacts/model"):
            (folder / Path(path).name).write_text(self.engine.machine.ssh("cat", path, check=False))

    def hurry(self):
        """Let the rest go quickly."""
        self.engine.machine.ssh("touch", f"{self.ledger}.enough")


def killed_at_random(place, folder, kills, dice):
    """Launch, kill trainer or agent so many times, wait for the end; return how often each was killed."""
    told = {
        "steps": kills * place.steps_a_kill,
        "save_every_steps": EVERY,
        "attempts": 10 * kills,
        "batch.global": 4,
    }
    settings = [word for key, value in told.items() for word in ("--set", f"{key}={value}")]
    run = place.launch(*settings)
    counts = {"trainer": 0, "agent": 0}
    seen = at_agent = 0
    while sum(counts.values()) < kills:
        until(lambda before=seen: lines(place, run, folder) > before, "a step", 120)
        time.sleep(dice.uniform(0.0, 0.6))
        is_rested = lines(place, run, folder) - at_agent >= place.steps_an_agent
        target = "agent" if is_rested and dice.random() < place.share else "trainer"
        mark = f"train.py {place.ledger}" if target == "trainer" else f"supervise {place.root}/runs/{run}"
        pids = [pid for pid, words in place.processes() if mark in words]
        counts[target] += sum(place.kill(pid) for pid in pids) > 0
        seen = lines(place, run, folder)
        at_agent = seen if target == "agent" else at_agent
        assert place.client.summary(run)["state"] not in ("succeeded", "failed"), (
            "it ended before all kills were done"
        )
    place.hurry()
    until(lambda: place.client.summary(run)["state"] in ("succeeded", "failed"), "the end", 300, 1.0)
    lines(place, run, folder)
    assert place.client.summary(run)["state"] == "succeeded"
    return counts


def lines(place, run, folder):
    """Return how many lines the ledger has."""
    place.fetch(run, folder)
    ledger = folder / "samples"
    return ledger.read_text().count("\n") if ledger.exists() else 0


def judged(place, tmp_path, record_property, where):
    """Kill at random, then judge by the ledger alone."""
    folder = tmp_path / "fetched"
    folder.mkdir()
    counts = killed_at_random(place, folder, KILLS, random.Random(KILLS))
    steps = KILLS * place.steps_a_kill
    again = trainer.judge(folder / "samples", folder / "model", steps, EVERY)
    starts = len(trainer.attempts(folder / "samples"))
    record_property("done", f"{where}: {counts['trainer']} x trainer, {counts['agent']} x agent")
    record_property("samples", f"{steps * trainer.GLOBAL_BATCH:,} of {steps * trainer.GLOBAL_BATCH:,}")
    record_property("starts", str(starts))
    record_property("again", f"{again} of {steps:,} steps, at most {EVERY} a kill")
    assert starts > 1


@pytest.mark.long
def test_on_this_machine_no_sample_is_lost_and_none_beyond_an_interval_seen_again(
    client, tmp_path, record_property
):
    """The keeper brings the agent back, the agent its trainer."""
    judged(Here(client), tmp_path, record_property, "native, under the keeper")


@pytest.mark.long
@pytest.mark.testbed
def test_in_a_container_no_sample_is_lost_and_none_beyond_an_interval_seen_again(
    client, engine, tmp_path, record_property
):
    """The engine brings the agent back, the agent its trainer."""
    judged(There(client, engine), tmp_path, record_property, "in a container")
