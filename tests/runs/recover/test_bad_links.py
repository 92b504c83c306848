"""Runs and uploads over bad links: whatever the link does, a run ends as it would have, and the mirror is the host's record.

LAUNCH_CUTS says how often the link is cut. What is recorded of each test makes the table of `make links`.
"""

import os
import re
import signal
import subprocess
import time
from typing import NamedTuple

import pytest
from testbed.client import MIRRORED, Client, until
from testbed.link import Link

pytestmark = pytest.mark.testbed
CUTS = int(os.environ.get("LAUNCH_CUTS", "5"))
MINUTE_S = 60
COUNTS = "import time, launcher_worker as w\nfor i in range(1, {n} + 1):\n    time.sleep({s})\n    w.log(i, loss=1 / i)\nw.done({n})\n"
COUNTS_ON = """\
import os, time, launcher_worker as w
i = 0
while not os.path.exists(os.path.expanduser("~/{mark}")):
    i += 1
    time.sleep(0.1)
    w.log(i, loss=1 / i)
w.done(i)
"""
SUMS = f"sha256sum {MIRRORED} && sha256sum plan.json"
HOST_SUMS = f"cd record && sha256sum {MIRRORED} && cd ../control && sha256sum plan.json"
TREE_SUMS = "find . -type f -print0 | sort -z | xargs -0 sha256sum"
MB = 1_000_000
UPLOAD_MB = 30


def name_hosts(client, machine, **links):
    """Give a client the machine under names of its own, each reached through a link."""
    tables = [
        re.sub(r"(?m)^address = .*", f'address = "{link.address}"\nport = {link.port}', machine.table(name))
        for name, link in links.items()
    ]
    (client.project / "launch.toml").write_text("".join(tables))


class Followed:
    """A run that a client follows."""

    def __init__(self, client, machine, steps=None, pause_s=0.1):
        """Begin it; without `steps` it goes on until `let_end`."""
        self.client = client
        self.machine = machine
        self.wanted = steps
        self.mark = f"enough-{client.project.parent.name}"
        client.script(COUNTS.format(n=steps, s=pause_s) if steps else COUNTS_ON.format(mark=self.mark))
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

    def steps_there(self):
        """How many steps are in the host's record."""
        return int(
            self.machine.ssh("grep", "-c", '"metric"', f".launch/runs/{self.run}/record/0002/events.jsonl")
        )

    def is_over_there(self):
        """Whether the host's record says that it has ended."""
        return "succeeded" in self.machine.ssh("cat", f".launch/runs/{self.run}/record/0002/state.json")

    def let_end(self):
        """Let the training end with its next step."""
        self.machine.ssh("touch", self.mark)

    def end(self, record, done):
        """Wait for the end, which is the run's own; the mirror is the host's record by the host's own sha256sum."""
        out, err = self.process.communicate(timeout=150)
        there = self.machine.ssh("sh", "-c", f"cd ~/.launch/runs/{self.run} && {HOST_SUMS}")
        here = subprocess.run(
            ["sh", "-c", SUMS], cwd=self.client.runs / self.run, capture_output=True, text=True, check=True
        ).stdout
        record("done", done)
        record("end", "succeeded" if "succeeded" in err else f"exit code {self.process.returncode}")
        record("identical", "yes" if here == there else "no")
        record("reconnects", err.count("the link is back"))
        assert self.process.returncode == 0, out + err
        assert "succeeded" in err
        assert here == there
        assert self.steps() == (self.wanted or self.steps_there())
        return err


class Upload:
    """A launch with much to send, and what the host has of it."""

    def __init__(self, client, machine):
        """Make the tree: big files and small ones, none of which the host has seen."""
        self.client = client
        self.machine = machine
        self.name = f"big-{client.project.parent.name}"
        for folder, count, size in ((self.name, UPLOAD_MB, MB), ("small", 500, 100)):
            (client.project / folder).mkdir()
            for number in range(count):
                (client.project / folder / f"{number}").write_bytes(os.urandom(size))

    def _sums(self):
        return subprocess.run(
            ["sh", "-c", TREE_SUMS], cwd=self.client.project, capture_output=True, text=True, check=True
        ).stdout

    def start(self):
        """Launch it."""
        self.digests = {line.split()[0] for line in self._sums().splitlines()}
        self.others = set(self._folders("incoming"))
        return self.client.start("--host", "A", "--", "true")

    def kept(self):
        """How many of its files the host's store holds."""
        return len(self.digests & set(self.machine.ssh("ls", *self._folders("files")).split()))

    def _folders(self, name):
        words = "find", f".launch/store/{name}", "-mindepth", "1", "-type", "d"
        return self.machine.ssh(*words, check=False).split()  # on a fresh machine there is no store

    def refused(self, process, record, done):
        """Wait for the end of a launch whose link died: it says what to do, and nothing half-done is there."""
        _, err = process.communicate(timeout=150)
        assert process.returncode == 4, err
        assert re.search(r"(?m)^A: (the connection (broke: \w+|ended)|no answer within the deadline)", err)
        assert "no run was begun; type the same command again" in err
        assert "Traceback" not in err
        assert self.machine.ssh("find", ".launch/runs", "-name", self.name) == ""
        until(lambda: set(self._folders("incoming")) <= self.others, "the broken upload to be removed")
        assert not list(self.client.runs.glob("[0-9]*"))
        record("done", done)

    def again(self, record):
        """Launch again: only what had not arrived is sent, and the run has the tree, by the host's own sha256sum."""
        kept = self.kept()
        (self.client.project / "launch.toml").rename(self.client.home / "launch.toml")
        here = self._sums()
        (self.client.home / "launch.toml").rename(self.client.project / "launch.toml")
        out = self.client.seen("--host", "A", "--", "true")
        sent, total = map(int, re.search(r"(\d+) of (\d+) files sent", out).groups())
        run = next(self.client.runs.glob("[0-9]*")).name
        code = f".launch/runs/{run}/work/code"
        there = self.machine.ssh("sh", "-c", f"cd {code} && {TREE_SUMS} | grep -v ./launch.toml")
        record("end", f"exit code 4; the next launch sent {sent} of {total} files, and succeeded")
        record("identical", "yes" if here == there else "no")
        record("reconnects", "none: a person launches again")
        assert 0 < kept < len(self.digests)
        assert sent == total - kept
        assert here == there


class Minute(NamedTuple):
    """A run and an upload whose links are half-open, and when the run's became so."""

    began: float
    run: Followed
    run_link: Link
    upload: Upload
    sending: subprocess.Popen
    upload_link: Link


@pytest.fixture
def box(client, machines):
    """Name the first machine `A`, reached through a link; return it and a maker of links."""
    machine = machines[0]

    def name(link):
        name_hosts(client, machine, A=link)
        return link

    return machine, name


@pytest.fixture(scope="module", autouse=True)
def minute(machines, tmp_path_factory):
    """For the last two tests; it is made first, so that the minute passes while the others run."""
    machine = machines[0]
    follower, sender = (Client(tmp_path_factory.mktemp(name)) for name in ("follower", "sender"))
    with Link(machine.address, 22) as run_link, Link(machine.address, 22) as upload_link:
        name_hosts(follower, machine, A=run_link)
        name_hosts(sender, machine, A=upload_link)
        upload = Upload(sender, machine)
        upload_link.freeze_after(UPLOAD_MB * MB // 2)
        sending = upload.start()
        run = Followed(follower, machine)
        try:
            until(lambda: upload_link.is_frozen, "the middle of the upload")
            run_link.freeze()
            yield Minute(time.monotonic(), run, run_link, upload, sending, upload_link)
        finally:
            run.let_end()
            for process in (run.process, sending):
                process.kill()
                process.communicate()


@pytest.mark.long
def test_a_link_that_is_cut_again_and_again(client, box, record_property):
    """Each time after some more steps; in one attempt."""
    machine, name = box
    with Link(machine.address, 22) as link:
        name(link)
        run = Followed(client, machine)
        for cut in range(CUTS):
            seen = run.steps()
            until(lambda seen=seen: run.steps() > seen, f"more steps before cut {cut + 1}")
            accepted = link.accepted
            assert link.cut() == 1
            # What had arrived before the cut can still come into the mirror: that is no new link.
            until(lambda accepted=accepted: link.accepted > accepted, f"a link after cut {cut + 1}")
        run.let_end()
        out = run.end(record_property, f"cut {CUTS} times in mid run")
    assert out.count("the run is not affected") >= CUTS
    assert not (client.runs / run.run / "0003").exists()


@pytest.mark.long
def test_a_half_open_link_is_noticed_and_mended(client, box, record_property):
    """Nobody is told that nothing arrives any more: the client finds out, and comes back by a new connection."""
    machine, name = box
    with Link(machine.address, 22) as link:
        name(link)
        run = Followed(client, machine, 40, 0.1)
        link.strand()
        out = run.end(record_property, "half-open for ever; a new connection works")
    assert "the link is back" in out


@pytest.mark.long
def test_a_slow_and_lossy_link(client, box, record_property):
    """40 ms there and back, and every fiftieth segment comes late."""
    machine, name = box
    with Link(machine.address, 22, delay_s=0.02, loss=0.02) as link:
        name(link)
        out = Followed(client, machine, 200, 0.01).end(record_property, "40 ms round trip, 2 % loss")
    assert "the run is not affected" not in out


@pytest.mark.long
def test_a_client_that_is_frozen_and_thawed(client, box, record_property):
    """A laptop that sleeps while its link dies and its run goes on."""
    machine, name = box
    with Link(machine.address, 22) as link:
        name(link)
        run = Followed(client, machine, 40, 0.05)
        run.process.send_signal(signal.SIGSTOP)
        until(run.is_over_there, "the run to end there")
        link.cut()
        run.process.send_signal(signal.SIGCONT)
        run.end(record_property, "client frozen (SIGSTOP) to the run's end, link cut meanwhile, thawed")


@pytest.mark.long
def test_a_busy_sshd_that_turns_the_client_away_when_it_comes_back(client, box, record_property):
    """As beyond MaxStartups: it knocks again before it gives the try up."""
    machine, name = box
    with Link(machine.address, 22) as link:
        name(link)
        run = Followed(client, machine, 40, 0.1)
        link.refuse(3)
        link.cut()
        out = run.end(record_property, "cut, and turned away 3 times on return, as beyond MaxStartups")
    assert link.accepted == 5
    assert out.count("the run is not affected") == 1


def test_an_upload_that_freezes_and_is_cut_goes_on_from_what_arrived(client, box, record_property):
    """Exit code 4 and what to do; no half tree is ever in use; the next launch sends the rest alone."""
    machine, name = box
    upload = Upload(client, machine)
    with Link(machine.address, 22) as link:
        name(link)
        link.freeze_after(UPLOAD_MB * MB // 2)
        process = upload.start()
        until(lambda: link.is_frozen, "the middle of the upload")
        assert machine.ssh(
            "sh", "-c", "cd ~/.launch/runs && grep -l preparing */record/0001/state.json"
        ).split()
        link.cut()
        upload.refused(process, record_property, f"upload of {UPLOAD_MB} MB frozen half way, then cut")
        link.thaw()
        upload.again(record_property)


@pytest.mark.long
def test_an_upload_over_a_half_open_link_ends_by_itself_and_goes_on_from_what_arrived(
    minute, record_property
):
    """Nobody cuts it: the client finds out that nobody listens, and says so. No word of paramiko's at the user."""
    upload, sending, link = minute.upload, minute.sending, minute.upload_link
    upload.refused(sending, record_property, f"upload of {UPLOAD_MB} MB half-open from half way on")
    link.cut()
    link.thaw()
    upload.again(record_property)


@pytest.mark.long
def test_a_minute_half_open_costs_a_run_nothing(minute, record_property):
    """Nothing comes through either way for 60 s, and nobody is told; the run goes on, and its client is back by itself."""
    run = minute.run
    until(lambda: time.monotonic() - minute.began >= MINUTE_S, "the minute to pass", timeout=2 * MINUTE_S)
    seen = run.steps()
    assert run.steps_there() > seen
    minute.run_link.thaw()
    half_open_s = time.monotonic() - minute.began
    until(lambda: run.steps() > seen, "more steps, after the thaw")
    run.let_end()
    out = run.end(record_property, f"half-open for {half_open_s:.0f} s, then thawed")
    assert "the link is back" in out
    assert not (run.client.runs / run.run / "0003").exists()
