"""A move: a run is stopped on one host and goes on at another, exactly once, whatever dies meanwhile."""

import hashlib
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from testbed.client import Client, processes_of, until

pytestmark = pytest.mark.slow(reason="each test starts several clients")

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
    time.sleep({pause})
open(os.path.join(plan.artifacts, "weights"), "w").write(repr(weight))
worker.done({steps})
"""
STEPS = 12


@pytest.fixture
def ground(ssh_host):
    """A folder with the root of host A, and the ledger that the users of both hosts write to."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    for name in ("A", "C"):
        (folder / name).mkdir()
        shutil.chown(folder / name, ssh_host.user)
    (folder / "ledger").touch()
    (folder / "ledger").chmod(0o666)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def two(client, ssh_host, ground):
    """An SSH host `A` with another user, and this machine; and a job with data."""
    (client.project / "launch.toml").write_text(ssh_host.table(root=str(ground / "A")))
    (client.project / "numbers.txt").write_text(" ".join(str(number % 7) for number in range(50)))
    (client.project / "job.toml").write_text(
        'name = "walk"\ncommand = ["python", "train.py"]\nsave_every_steps = 1\n'
        f'steps = {STEPS}\n[data]\ntrain = "./numbers.txt"\n[batch]\nglobal = 4\n'
    )
    roots = {"A": ground / "A", "local": client.home / ".launch"}
    yield Two(client, roots, ground / "ledger")
    for run in (path for root in roots.values() for path in (root / "runs").glob("[0-9]*")):
        for pid in processes_of(run):
            os.kill(pid, signal.SIGKILL)


class Two(NamedTuple):
    """Two hosts: a client, the roots by host, and the ledger that trainings write outside of their runs."""

    client: Client
    roots: dict[str, Path]
    path: Path

    def ledger(self):
        """(run, step, sample, weight) of each step, by the training's own word."""
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def started(self, host="A", pause=0.4):
        """A run in the middle of its work."""
        text = TRAIN.format(ledger=str(self.path), pause=pause, steps=STEPS)
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


def test_a_run_moves_in_mid_flight_and_ends_with_the_weights_of_an_unbroken_one(two):
    """Code, data and checkpoint are byte for byte the same; its parent is on record, and the curve is one."""
    client = two.client
    run = two.started()
    (client.project / "train.py").write_text(
        "raise SystemExit('not what was sent')"
    )  # the host's copy travels
    (client.project / "numbers.txt").unlink()
    out = client.ok("recover", run, "--host", "local")
    ((child, _),) = two.runs_on("local").items()
    assert child in out
    assert "from step" in out
    assert two.runs_on("A") == {run: "stopped"}
    assert "succeeded" in client.seen("attach", child)
    two.judge()
    for name in ("code/train.py", "data/train"):
        before = two.roots["A"] / "runs" / run / "work" / name
        after = two.roots["local"] / "runs" / child / "work" / name
        assert digest_of(before) == digest_of(after)
    rows = {row["run"]: row for row in json.loads(client.ok("ps", "--json"))["runs"]}
    assert rows[child]["parent"]["run"] == run
    told = [json.loads(line) for line in client.ok("metrics", child, "--json").splitlines()]
    assert sorted({line["step"] for line in told if line.get("name") == "loss"}) == [*range(1, STEPS + 1)]
    assert not (client.runs / run / ".moving").exists()


def digest_of(path):
    """The SHA-256 of a file, or of the only file in a folder."""
    file = path if path.is_file() else next(path.iterdir())
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_move_goes_to_an_ssh_host_too_and_twice_is_once(two):
    """The second one says that there is nothing to do, or that it has ended; another host is refused by name."""
    client = two.client
    run = two.started("local")
    client.ok("recover", run, "--host", "A")
    ((child, _),) = two.runs_on("A").items()
    seen = client.run("recover", run, "--host", "A")
    assert "nothing to do" in seen.stdout or "has succeeded" in seen.stderr
    with (client.project / "launch.toml").open("a") as file:
        file.write(
            (client.project / "launch.toml")
            .read_text()
            .replace("[hosts.A]", "[hosts.C]")
            .replace('/A"', '/C"')
        )
    seen = client.run("recover", run, "--host", "C")
    assert (seen.returncode, f"was moved to A as {child}" in seen.stderr) == (2, True), seen.stderr
    client.ok("attach", child)
    assert [*two.runs_on("A")] == [child]
    two.judge()


def test_the_same_host_is_no_move(two):
    """The run is recovered there, or needs nothing."""
    run = two.started("local", pause=0.2)
    assert "nothing to do" in two.client.ok("recover", run, "--host", "local")
    two.client.ok("attach", run)
    two.judge()


SAVES = "worker.save(1, lambda folder: open(folder + '/weights', 'w').close())\n"
RESUMES = "worker.resume_from()\n"
WAITS = "print('up', flush=True)\ntime.sleep(600)\n"


@pytest.mark.parametrize(
    ("body", "words", "more", "code", "named"),
    [
        (RESUMES, [], [], 1, "launch rerun"),
        (SAVES, [], [], 1, "launch rerun"),
        (RESUMES + SAVES, ["--secret", "HF_TOKEN"], [], 2, "export HF_TOKEN"),
        (RESUMES + SAVES, [], ["--profile", "titan_rtx"], 3, "GPU"),
        (RESUMES + SAVES, ["--set", "data.train=host:~/numbers"], [], 4, "/numbers does not exist"),
    ],
    ids=["no checkpoint", "no resume", "no secret", "no card", "no path"],
)
def test_what_is_refused_leaves_the_run_as_it_is(two, ssh_host, body, words, more, code, named):
    """Before anything is stopped; the mend is named."""
    client = two.client
    (ssh_host.home / "numbers").touch()
    client.script(f"import time, launcher_worker as worker\n{body}{WAITS}")
    client.variables["HF_TOKEN"] = "correct-horse-battery"
    run = client.detached("--host", "A", *words, "--", "python", "train.py")
    log = two.roots["A"] / "runs" / run / "record" / "0002" / "log.txt"
    until(lambda: log.exists() and b"up" in log.read_bytes(), "the training")
    del client.variables["HF_TOKEN"]
    seen = client.run("recover", run, "--host", "local", *more)
    assert (seen.returncode, named in seen.stderr) == (code, True), seen.stderr
    assert two.runs_on("A") == {run: "running"}
    assert two.runs_on("local") == {}
    client.ok("stop", "--now", run)


@pytest.mark.parametrize("stage", ["probe", "stop", "pull", "ship", "start"])
def test_a_client_killed_in_a_move_leaves_one_run_that_goes_on(two, stage):
    """At most one trains; `recover` again ends with one finished run, in which each step counts once."""
    client = two.client
    run = two.started()
    mover = client.start("recover", run, "--host", "local")
    for line in iter(mover.stderr.readline, ""):
        if f"✓ {stage}" in line:
            break
    mover.kill()
    mover.communicate()
    live = [state for state in two.everywhere().values() if state in ("running", "resuming", "preparing")]
    assert len(live) <= 1
    again = client.run("recover", run, "--host", "local")
    assert again.returncode == 0 or "has succeeded" in again.stderr, again.stderr
    until(lambda: "succeeded" in two.everywhere().values(), "the end")
    two.judge()
