"""Stop, remove, clear, execute and list under conditions that stop everything else, with the kernel's own faults.

Witnesses: /proc, the files on the disk itself, and the docker CLI.
"""

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from testbed.client import is_gone, kill_all_of, missing, processes_of, until

pytestmark = [
    pytest.mark.slow(reason="a run for each condition, from start to end"),
    pytest.mark.testbed,
]

STEPS = """
import itertools, time
import launcher_worker as worker
for step in itertools.count(1):
    worker.log(step, loss=1.0 / step)
    time.sleep(0.05)
"""
MANY = """
import os, resource, socket, sys, time
from pathlib import Path
import launcher_worker as worker
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = []
for number in range(1, 1101):
    one = socket.socket(socket.AF_UNIX)
    one.connect(os.environ["LAUNCH_SOCKET"])
    one.sendall(b'{"kind":"metric","rank":0,"time":1.0,"step":%d,"values":{"held":1}}\\n' % number)
    held.append(one)
Path(sys.argv[1]).touch()
while not Path(sys.argv[1] + ".enough").exists():
    time.sleep(0.05)
for one in held:
    one.close()
worker.log(1101, held=1)
worker.done(1101)
"""


class Disk:
    """A file system of its own, of which the gate sees 1.2 GB free until it takes nothing more."""

    def __init__(self, folder: Path) -> None:
        self.image, self.place = folder / "image", folder / "disk"
        self.place.mkdir()

    def mount(self, kind: str) -> None:
        """Mount a tmpfs or, from a sparse file, an ext4."""
        if kind == "tmpfs":
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=1200m,mode=700", "tmpfs", self.place], check=False
            )
        else:
            with self.image.open("wb") as file:
                file.truncate(1300 << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", self.image], check=True)
            done = subprocess.run(["mount", "-o", "loop", self.image, self.place], check=False)
        if done.returncode:
            missing(f"this machine mounts no {kind}")

    def remount(self, options: str) -> None:
        """Change it while it is in use."""
        subprocess.run(["mount", "-o", f"remount,{options}", self.place], check=True)

    def fill(self) -> None:
        """Leave no block."""
        with (self.place / "filler").open("wb", buffering=0) as file:
            for size in (1 << 30, 1 << 24, 1 << 20, 1 << 16, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
            with contextlib.suppress(OSError):
                while file.write(b"x" * 4096):
                    pass

    def use_up_inodes(self) -> None:
        """Leave no inode: a file can be written, and none be made."""
        status = os.statvfs(self.place)
        self.remount(f"nr_inodes={status.f_files - status.f_ffree}")

    def become_read_only(self) -> None:
        """Have the kernel refuse every write, as after an error of the disk, whoever has files open."""
        self.remount("abort")


@pytest.fixture
def disk(tmp_path):
    """A disk that is not mounted yet."""
    if os.geteuid() != 0:
        missing("a file system of its own needs root")
    made = Disk(tmp_path)
    yield made
    for path in (made.place / "runs").glob("*"):
        kill_all_of(path)
    subprocess.run(["umount", "--lazy", made.place], check=False, capture_output=True)


def launched(client, root, script=STEPS, *words):
    """Launch below a root; return the run's id and its folder once it trains."""
    (client.project / "launch.toml").write_text(f'[hosts.local]\nroot = "{root}"\n')
    client.script(script)
    run = client.detached("--set", "stop_grace_s=2", "--", "python", "train.py", *words)
    return run, Path(root) / "runs" / run


def seen_by_follower(client, run, words):
    """Follow a run until its follower has shown the words, and detach."""
    follower = client.start("attach", run)
    said = b""
    deadline = time.monotonic() + 30
    while words.encode() not in said and time.monotonic() < deadline:
        if select.select([follower.stderr], [], [], 0.1)[0]:
            said += os.read(follower.stderr.fileno(), 1 << 16)
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=180)
    assert words.encode() in said


FULL = "disk full on local"
READ_ONLY = "read-only file system on local"
CONDITIONS = {
    "full": ("ext4", Disk.fill, FULL, "stop", "stopped"),
    "no inode left": ("tmpfs", Disk.use_up_inodes, FULL, "now", "stopped"),
    "read-only": ("ext4", Disk.become_read_only, READ_ONLY, "stop", "interrupted"),
    "read-only, now": ("ext4", Disk.become_read_only, READ_ONLY, "now", "interrupted"),
}


@pytest.mark.parametrize(
    "condition",
    [pytest.param(one, marks=() if one == "read-only" else pytest.mark.long) for one in CONDITIONS],
)
def test_a_disk_that_takes_nothing_keeps_no_verb_from_its_work(client, disk, condition):
    """The run ends, nothing of it is left, and the verbs say what is wrong on which host; what frees room frees it."""
    kind, begin, words, how, end = CONDITIONS[condition]
    disk.mount(kind)
    run, folder = launched(client, disk.place)
    events = folder / "record" / "0002" / "events.jsonl"
    until(lambda: '"metric"' in events.read_text(), "a step")
    begin(disk)
    until(lambda: words in client.ok("ps"), "the words of ps", every=0.5)
    assert client.ok("exec", run, "--", "echo", "there") == "there\n"
    refused = client.run("rm", "--force", run)
    assert ("stop it before" if words == FULL else words) in refused.stderr
    if condition == "full":
        seen_by_follower(client, run, words)
    began = time.monotonic()
    stopped = client.seen("stop", *(["--now"] if how == "now" else []), run)
    assert time.monotonic() - began < 20
    assert end in stopped
    assert "None" not in stopped
    assert not processes_of(folder)
    gc = client.run("gc")
    removed = client.run("rm", "--force", run)
    if words == READ_ONLY:
        assert f"{words}: the end is not on record" in stopped
        assert [done.stderr.startswith(words) for done in (gc, removed)] == [True, True]
        assert folder.exists()
    else:
        assert (gc.returncode, removed.returncode, folder.exists()) == (0, 0, False), removed.stderr
        assert "stopped" in client.ok("ps")


@pytest.mark.long
def test_workers_beyond_the_descriptors_wait_and_are_heard(client, tmp_path):
    """1,100 connections under the usual limit of 1,024 files: the agent lives, and no line of theirs is lost."""
    begun = tmp_path / "begun"
    (client.project / "launch.toml").write_text(f'[hosts.local]\nroot = "{tmp_path / "root"}"\n')
    client.script(MANY)
    words = ["--detach", "--", "python", "train.py", str(begun)]
    launch = client.start(*words, preexec_fn=_usual_limit)
    out, err = launch.communicate(timeout=180)
    assert launch.returncode == 0, err
    run = out.split()[-1]
    until(begun.exists, "all connections")
    folder = tmp_path / "root" / "runs" / run
    assert client.summary(run)["state"] == "running"
    assert client.ok("exec", run, "--", "echo", "there") == "there\n"
    assert "stop it before" in client.run("rm", "--force", run).stderr
    client.ok("gc")
    Path(f"{begun}.enough").touch()
    until(lambda: client.summary(run)["state"] == "succeeded", "the end")
    lines = (folder / "record" / "0002" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert sorted(event["step"] for event in events if event["kind"] == "metric") == list(range(1, 1102))
    assert len([path for path in (folder / "record").iterdir() if path.is_dir()]) == 2


def _usual_limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))


@pytest.fixture
def freezer():
    """A control group whose processes the kernel freezes: no signal but SIGKILL reaches them."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    found = [Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2"]
    if not found or os.geteuid() != 0:
        missing("no control group can be made here")
    group = found[0] / f"launch-test-{os.getpid()}"
    group.mkdir()
    yield group
    (group / "cgroup.freeze").write_text("0")
    until(lambda: "populated 0" in (group / "cgroup.events").read_text(), "an empty group")
    group.rmdir()


def test_a_frozen_agent_is_stopped_all_the_same(client, freezer):
    """One that no signal wakes is killed after a while, with its training and its keeper; see test_sweep.py for SIGSTOP."""
    run, folder = launched(client, client.home / ".launch")
    ours = processes_of(folder)
    for pid in ours:
        (freezer / "cgroup.procs").write_text(str(pid))
    (freezer / "cgroup.freeze").write_text("1")
    assert client.ok("exec", run, "--", "echo", "there") == "there\n"
    assert "stop it before" in client.run("rm", "--force", run).stderr
    client.ok("gc")
    assert "stopped" in client.ok("stop", "--now", run)
    assert all(map(is_gone, ours))
    client.ok("rm", "--force", run)
    assert not folder.exists()
