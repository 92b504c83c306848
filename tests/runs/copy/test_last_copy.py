"""Pulls, copies, removals, resumptions and garbage collections in random orders, also killed half way: no last copy is lost.

The witness is `find` and `sha256sum` on both sides, after each step. `make orders` runs many orders and writes a table.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter

import pytest
from testbed.client import kill_all_of, processes_of, until

pytestmark = pytest.mark.slow(reason="each order is a dozen clients")

ORDERS = int(os.environ.get("LAUNCH_ORDERS", "1"))
STEPS = 10
SEED = 261122
SCRIPT = """
import os, launcher_worker as w
knobs = w.knobs()
start = w.resume_from()
os.makedirs("out", exist_ok=True)
for name, size in (("out/model.bin", 3_000_000), ("log.csv", 2000)):
    with open(name, "wb") as file:
        file.write(os.urandom(size))
with open(os.path.join(os.environ["LAUNCH_ARTIFACTS"], "adapter"), "wb") as file:
    file.write(os.urandom(400_000))
first = 1 if start is None else 5
w.log(first, loss=1.0)
w.save(first, lambda folder: open(os.path.join(folder, "w"), "wb").write(os.urandom(50_000)))
w.done(first)
"""
TAKING = ("pull", "pull --all", "pull one", "cp")
LOSING = ("rm", "rm --here", "gc")
WRITING = ("newer", "another", "edit")


def digests(*folders):
    """The SHA-256 of every file below some folders, by find and sha256sum."""
    command = ["find", *folders, "-type", "f", "-exec", "sha256sum", "{}", "+"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {line[66:]: line[:64] for line in said.splitlines()}


class World:
    """A client, a host, a run that has ended there, and what of it must not be lost, by SHA-256."""

    def __init__(self, client, run, drawn):
        self.client, self.run, self.drawn = client, run, drawn
        self.work = client.home / ".launch" / "runs" / run / "work"
        self.copies = client.project / "copies"
        self.copies.mkdir(exist_ok=True)
        self.precious = {}
        self.done = Counter()
        self._note()

    def _note(self):
        """Take what the host has now for what must be kept; what it replaced need not be."""
        tops = [self.work / name for name in ("artifacts", "checkpoints", "code")]
        for path, digest in digests(*tops).items():
            if not path.endswith((".py", ".toml")) and "__pycache__" not in path:
                self.precious[path] = digest

    def lost(self):
        """The precious files that are nowhere, on neither side."""
        anywhere = set(digests(self.work, self.client.project).values())
        return {path: digest for path, digest in self.precious.items() if digest not in anywhere}

    def write(self, what):
        """Let the run, or the user here, write a file."""
        if what == "edit":
            mine = [path for path in self.client.runs.glob(f"{self.run}/outputs/*.csv") if path.is_file()]
            if mine:
                before = digests(mine[0])[str(mine[0])]
                mine[0].write_bytes(os.urandom(500))
                for path in [path for path, digest in self.lost().items() if digest == before]:
                    del self.precious[path]  # the user's own doing
                self.precious[str(mine[0])] = digests(mine[0])[str(mine[0])]
        elif self.work.is_dir():
            name = "log.csv" if what == "newer" else f"out/{self.drawn.randrange(9)}.bin"
            (self.work / "code" / name).write_bytes(os.urandom(self.drawn.choice([10, 300_000])))
            self._note()

    def words(self, what):
        """The command line of a step."""
        return {
            "pull": ["pull", self.run],
            "pull --all": ["pull", self.run, "--all"],
            "pull one": ["pull", self.run, self.drawn.choice(["out", "artifacts/adapter", "checkpoints"])],
            "cp": ["cp", f"{self.run}:out", str(self.copies / str(self.drawn.randrange(10**9)))],
            "rm": ["rm", self.run],
            "rm --here": ["rm", "--here", self.run],
            "gc": ["gc"],
            "resume": ["resume", self.run, "--detach", "--set", "steps=9"],
        }[what]

    def step(self, what, is_killed):
        """Do a step, to its end or until a random moment; the client, its agent, or both are killed."""
        self.done[f"{what}, killed" if is_killed else what] += 1
        if what in WRITING:
            self.write(what)
            return
        process, killed = self.client.start(*self.words(what)), []
        if is_killed:
            time.sleep(self.drawn.uniform(0.3, 1.6))
            victims = [process.pid, *(pid for pid in children(process.pid))]
            killed = self.drawn.sample(victims, self.drawn.randint(1, len(victims)))
            for pid in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=120)
        assert process.pid in killed or "Traceback" not in err, (what, err)  # else its agent's last words
        assert is_killed or process.returncode in (0, 1, 2, 4), (what, out, err)
        until(lambda: not agents_of(self.client), "the end of the agents", 90)


def children(pid):
    """The children of a process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def agents_of(client):
    """The agents that serve a client."""
    return [pid for pid in processes_of(client.home / ".launch") if is_agent(pid)]


def is_agent(pid):
    """Whether a process is an agent that serves."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"\0serve\0" in file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def made(client):
    """A run that has ended, which nobody pulled, and a way back to that state."""
    client.script(SCRIPT)
    client.script('name = "x"\ncommand = ["python", "train.py"]\nsteps = 1\n', "x.toml")
    run = client.detached("--job", "x.toml")
    until(lambda: client.summary(run)["state"] == "succeeded", "its end")
    saved = client.home.parent / "saved"
    folders = (client.home / ".launch" / "runs", client.runs, client.index)
    for number, folder in enumerate(folders):
        shutil.copytree(folder, saved / str(number), symlinks=True)

    def restore():
        shutil.rmtree(client.project / "copies", ignore_errors=True)
        for number, folder in enumerate(folders):
            for child in folder.glob("*"):
                kill_all_of(child)
            shutil.rmtree(folder)
            shutil.copytree(saved / str(number), folder, symlinks=True)

    return run, restore


@pytest.mark.long
def test_no_order_loses_a_last_copy(client, made, record_property):
    """Random steps, a third of them killed; in the end a pull of everything and a removal leave all of it here."""
    run, restore = made
    drawn, done = random.Random(SEED), Counter()
    for order in range(ORDERS):
        restore()
        world, steps = World(client, run, drawn), []
        for _ in range(STEPS):
            kind = drawn.choice(
                [TAKING, TAKING, LOSING, LOSING, WRITING, ("resume",) if drawn.random() < 0.3 else TAKING]
            )
            what, is_killed = drawn.choice(kind), drawn.random() < 0.33
            steps.append(f"{what}{' killed' if is_killed and what not in WRITING else ''}")
            world.step(what, is_killed and what not in WRITING)
            assert not world.lost(), f"order {order}: {', '.join(steps)}"
        if world.work.is_dir():
            client.ok("pull", run, "--all")
            client.ok("rm", run)
        assert not world.work.exists()
        assert not world.lost(), (order, [*steps, "pull --all", "rm"])
        done += world.done
    killed = sum(count for what, count in done.items() if what.endswith("killed"))
    record_property("orders", ORDERS)
    record_property("steps", ", ".join(f"{count} x {what}" for what, count in sorted(done.items())))
    record_property("killed", f"{killed} of {done.total()}")
    record_property("lost", 0)
