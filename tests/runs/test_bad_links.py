"""Runs followed over bad links: whatever the link does, the run ends as it would have, and the mirror is the host's record.

LAUNCH_CUTS says how often the link is cut.
"""

import os
import re
import signal
import subprocess

import pytest
from testbed.client import until
from testbed.link import Link

pytestmark = pytest.mark.testbed
CUTS = int(os.environ.get("LAUNCH_CUTS", "5"))
COUNTS = "import time, launcher_worker as w\nfor i in range(1, {n} + 1):\n    time.sleep({s})\n    w.log(i, loss=1 / i)\nw.done({n})\n"
SUMS = "sha256sum plan.json [0-9]*/*.json [0-9]*/*.jsonl [0-9]*/*.txt"


@pytest.fixture
def box(client, machines):
    """Name the first machine `A`, reached through a link; return it and a maker of links."""
    machine = machines[0]

    def name(link):
        table = re.sub(
            r"(?m)^address = .*", f'address = "{link.address}"\nport = {link.port}', machine.table("A")
        )
        (client.project / "launch.toml").write_text(table)
        return link

    return machine, name


class Followed:
    """A run that a client follows."""

    def __init__(self, client, machine, steps, pause_s):
        self.client = client
        self.machine = machine
        self.wanted = steps
        client.script(COUNTS.format(n=steps, s=pause_s))
        self.process = client.start("--host", "A", "--", "python", "train.py")
        until(self.steps, "the stream")

    @property
    def run(self):
        """Its id."""
        return next(path.name for path in self.client.runs.glob("[0-9]*"))

    def steps(self):
        """How many steps are in the mirror."""
        return sum(
            path.read_bytes().count(b'"metric"') for path in self.client.runs.glob("*/0002/events.jsonl")
        )

    def is_over_there(self):
        """Whether the host's record says that it has ended."""
        path = f"/home/{self.machine.user}/.launch/runs/{self.run}/0002/state.json"
        return "succeeded" in self.machine.ssh("cat", path)

    def end(self):
        """Wait for the end, which is the run's own; the mirror is the host's record by the host's own sha256sum."""
        out, err = self.process.communicate(timeout=150)
        assert self.process.returncode == 0, out + err
        assert "succeeded" in out
        there = self.machine.ssh("sh", "-c", f"cd ~/.launch/runs/{self.run} && {SUMS}")
        here = subprocess.run(
            ["sh", "-c", SUMS], cwd=self.client.runs / self.run, capture_output=True, text=True, check=True
        ).stdout
        assert here == there
        assert self.steps() == self.wanted
        return out


def test_a_link_that_is_cut_again_and_again(client, box):
    """Each time after some more steps; in one attempt."""
    machine, name = box
    with Link(machine.address, 22) as link:
        name(link)
        run = Followed(client, machine, 20 * CUTS, 0.1)
        for cut in range(CUTS):
            seen = run.steps()
            until(lambda seen=seen: run.steps() > seen, f"more steps before cut {cut + 1}")
            assert link.cut() == 1
        out = run.end()
    assert out.count("the run is not affected") >= CUTS


@pytest.mark.parametrize("how", ["stranded", "thawed"])
def test_a_half_open_link_is_noticed_and_mended(client, box, how):
    """Nobody is told that nothing arrives any more: the client finds out, and comes back by itself."""
    machine, name = box
    with Link(machine.address, 22) as link:
        name(link)
        run = Followed(client, machine, 40, 0.1)
        if how == "stranded":
            link.strand()
        else:
            link.freeze()
            until(run.is_over_there, "the run to end there")
            link.thaw()
        assert ("the link is back" in run.end()) or how == "thawed"


def test_a_slow_and_lossy_link(client, box):
    """40 ms there and back, and every hundredth segment comes late."""
    machine, name = box
    with Link(machine.address, 22, delay_s=0.02, loss=0.01) as link:
        name(link)
        assert "the run is not affected" not in Followed(client, machine, 200, 0.01).end()


def test_a_client_that_is_frozen_and_thawed(client, box):
    """A laptop that sleeps while its link dies and its run goes on."""
    machine, name = box
    with Link(machine.address, 22) as link:
        name(link)
        run = Followed(client, machine, 40, 0.05)
        run.process.send_signal(signal.SIGSTOP)
        until(run.is_over_there, "the run to end there")
        link.cut()
        run.process.send_signal(signal.SIGCONT)
        run.end()


def test_a_busy_sshd_that_turns_the_client_away_when_it_comes_back(client, box):
    """As beyond MaxStartups: it knocks again before it gives the try up."""
    machine, name = box
    with Link(machine.address, 22) as link:
        name(link)
        run = Followed(client, machine, 40, 0.1)
        link.refuse(3)
        link.cut()
        out = run.end()
    assert link.accepted == 5
    assert out.count("the run is not affected") == 1
