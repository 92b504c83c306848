"""Several clients at once, hosts and disks that refuse: a run's client tells it, and ends as the run did."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from testbed.client import is_gone, until

from launcher.copy.runs_folder import runs_folder
from launcher.errors import UsageError

pytestmark = pytest.mark.slow(reason="each test starts several clients and a run")

STEPS = 600
IN_STEP = """
import os, time, launcher_worker as w
for step in range(1, {steps} + 1):
    while step > int(open({gate!r}).read() or 0):
        time.sleep(0.01)
    w.log(step, loss=1 / step)
    print("step", step, flush=True)
w.done({steps})
"""
MAKES = """
import os, launcher_worker as w
for name, size in {sizes!r}.items():
    with open(os.path.join(w.knobs().artifacts, name), "wb") as file:
        file.write(os.urandom(1000) * (size // 1000))
w.log(1, loss=1.0)
w.done(1)
"""
JOB = 'name = "x"\ncommand = ["python", "train.py"]\nsteps = {steps}\n'


class Heard:
    """A command that runs, and what it has said so far."""

    def __init__(self, process):
        self.process = process
        self.text = ""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        for line in self.process.stderr:
            self.text += line

    def steps(self):
        """Return the steps that it has shown."""
        return [int(step) for step in re.findall(r"^ +step +(\d+)", self.text, re.MULTILINE)]

    def end(self):
        """Wait for its end; return its exit code and all that it said."""
        self.process.wait(timeout=180)
        self._thread.join()
        return self.process.returncode, self.text + self.process.stdout.read()

    def close(self):
        """End it, if it has not ended by itself."""
        self.process.kill()
        self.process.wait()
        self._thread.join()
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def hear(client):
    """Start commands, and listen to them."""
    with contextlib.ExitStack() as stack:
        yield lambda *words: stack.enter_context(contextlib.closing(Heard(client.start(*words))))


@pytest.fixture
def ends():
    """What is done at the end, however the test ends: a stopped process would keep this one from ending."""
    with contextlib.ExitStack() as stack:
        yield stack


def sums(folder, *patterns):
    """SHA-256 of files below a folder, by sha256sum."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for one in patterns
        for path in folder.glob(one)
        if path.is_file() and path.name not in ("lock", "heartbeat", "sealed.json", "stacks.txt")
    )
    said = subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, text=True, check=True)
    return said.stdout


def record(folder):
    return sums(folder, "[0-9]*/*"), sums(folder, "plan.json")


def record_on_host(folder):
    return sums(folder / "record", "[0-9]*/*"), sums(folder / "control", "plan.json")


def there(client, run):
    return client.home / ".launch" / "runs" / run


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
def test_two_who_follow_one_run_from_one_folder_do_not_hurt_each_other(client, hear, ends):
    """One is far behind and applies an old answer while the other goes on: both end with the run, all is there."""
    gate = client.home / "gate"
    allowed = iter(range(1, STEPS + 1))

    def let(step):
        (client.home / "gate.new").write_text(str(step))
        (client.home / "gate.new").replace(gate)
        return step

    let(0)
    client.script(IN_STEP.format(gate=str(gate), steps=STEPS))
    client.script(JOB.format(steps=STEPS), "x.toml")
    run = client.detached("--job", "x.toml")
    fast, slow = hear("attach", run), hear("attach", run)
    until(lambda: let(next(allowed)) and fast.steps() and slow.steps(), "both to follow")
    now = let(next(allowed))
    until(lambda: now in fast.steps() and now in slow.steps(), "both to be up to date")
    agents = children(slow.process.pid)
    ends.callback(lambda: [os.kill(pid, signal.SIGCONT) for pid in agents if not is_gone(pid)])
    slow.process.send_signal(signal.SIGSTOP)
    for step in (now + 3, now + 6):  # the first of these waits for the slow one in its answer
        let(step)
        until(lambda step=step: step in fast.steps(), "the fast one to go on")
    for pid in agents:
        os.kill(pid, signal.SIGSTOP)
    slow.process.send_signal(signal.SIGCONT)
    until(lambda: now + 1 in slow.steps(), "the slow one to apply its answer")
    let(STEPS)
    code, said = fast.end()
    assert (code, "no link" in said) == (0, False), said
    assert record(client.runs / run) == record_on_host(there(client, run))
    for pid in agents:
        os.kill(pid, signal.SIGCONT)
    code, said = slow.end()
    assert (code, "no link" in said) == (0, False), said
    for one in (fast, slow):
        assert one.steps() == list(range(one.steps()[0], STEPS + 1))
    assert record(client.runs / run) == record_on_host(there(client, run))


def size_of(path):
    """Return a file's size; 0 if it has just got its final name."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def waits_for_a_lock(pid):
    """Whether the kernel says so."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1] == "->" and words[5] == str(pid) for words in lines)


@pytest.mark.long
def test_two_who_pull_one_run_at_once_both_have_all_of_it(client):
    """One is held up in the middle while another pulls: whoever ends last, every artifact is in its place."""
    sizes = {"a": 60_000_000, "b": 1000, "c": 1000}
    client.script(MAKES.format(sizes=sizes))
    client.script(JOB.format(steps=1), "x.toml")
    client.ok("--job", "x.toml")
    (run,) = (path.name for path in client.runs.glob("[0-9]*"))
    shutil.rmtree(client.runs / run / "artifacts")
    first = client.start("pull", run)
    parts = client.runs / run / ".parts"
    while not any(size_of(path) > 1000 for path in parts.glob("*")):  # it is to be caught in the act
        assert first.poll() is None
    first.send_signal(signal.SIGSTOP)
    second = client.start("pull", run)
    until(lambda: second.poll() is not None or waits_for_a_lock(second.pid), "the second to end or to wait")
    first.send_signal(signal.SIGCONT)
    for process, came in ((first, "3 files, 60.0 MB"), (second, "3 files were here")):
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, out + err
        assert came in err
    assert sums(client.runs / run / "artifacts", "*") == sums(there(client, run) / "work" / "artifacts", "*")
    assert not parts.exists()


@pytest.mark.testbed
def test_an_artifact_that_the_host_cannot_read_is_named_and_the_others_come_home(client, lab):
    """The run has succeeded: exit code 0, what is missing and why, and the command that fetches it later."""
    client.script(
        MAKES.format(sizes={"good": 5000, "secret": 1000})
        + "os.chmod(os.path.join(w.knobs().artifacts, 'secret'), 0)\n"
    )
    client.script(JOB.format(steps=1), "x.toml")
    process = client.start("--host", "A", "--job", "x.toml")
    out, err = process.communicate(timeout=180)
    (run,) = (path.name for path in client.runs.glob("[0-9]*"))
    assert process.returncode == 0, out + err
    assert "secret (Permission denied)" in err
    assert f"launch pull {run[-6:]}" in err
    assert os.listdir(client.runs / run / "artifacts") == ["good"]
    again = client.run("pull", run)
    assert again.returncode == 1
    assert "secret (Permission denied)" in again.stderr
    lab.ssh("chmod", "600", f"{lab.root}/runs/{run}/work/artifacts/secret")
    assert "1 file, 1.0 kB, 1 file was here" in client.seen("pull", run)


def test_a_full_disk_here_ends_no_run_and_is_not_taken_for_a_lost_link(client, small_disk):
    """The artifacts do not fit: that is said before a byte comes, exit code 0 for the run that succeeded, 1 for the pull."""
    client.runs.symlink_to(small_disk)
    client.variables["LAUNCH_RUNS"] = str(small_disk)
    client.script(MAKES.format(sizes={"large": 8_000_000}))
    client.script(JOB.format(steps=1), "x.toml")
    process = client.start("--job", "x.toml")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    (run,) = (path.name for path in small_disk.glob("[0-9]*"))
    assert "no room in" in err
    assert "8.0 MB are needed" in err
    assert f"launch pull {run[-6:]}" in err
    assert "no link" not in err
    done = client.run("pull", run, timeout=60)
    assert (done.returncode, "8.0 MB are needed" in done.stderr, "are missing" in done.stderr) == (
        1,
        True,
        True,
    )
    assert not list(small_disk.rglob("large"))
    assert record(client.runs / run) == record_on_host(there(client, run))


@pytest.mark.long
def test_a_log_that_does_not_fit_is_told_with_its_path(client, small_disk):
    """`launch logs` on a full disk: the file and the reason, no traceback, exit code 1."""
    client.runs.symlink_to(small_disk)
    client.variables["LAUNCH_RUNS"] = str(small_disk)
    client.script("print('x' * 8_000_000)")
    run = client.detached("--", "python", "train.py")
    until(lambda: client.summary(run, "--host", "local")["state"] == "succeeded", "its end")
    done = client.run("logs", run)
    assert done.returncode == 1
    assert "log.txt: No space left on device" in done.stderr


STEP = "import launcher_worker as w\nfor step in (1, 2): w.log(step, loss=1 / step)\nw.done(2)\n"


@contextlib.contextmanager
def mounted(source, place):
    subprocess.run(["mount", "--rbind", source, place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def full_disk(small_disk):
    """A file system without room for another byte."""
    with (small_disk / "all").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    return small_disk


@pytest.mark.long
def test_what_tensorboard_could_not_write_only_at_its_end_is_told(client, full_disk):
    """A run that has ended sends all at once, and the disk refuses when the last of it is flushed."""
    client.script(STEP)
    run = client.detached("--", "python", "train.py")
    client.ok("attach", run)
    board = client.runs / run / "tensorboard"
    with (
        mounted(full_disk / "all", full_disk / "all"),
        mounted(full_disk, board),
    ):  # so neither can be removed
        said = client.seen("attach", run)
    assert (
        f"TensorBoard files are no longer written: {client.runs / run}/tensorboard: No space left on device"
        in said
    )
    assert "succeeded" in said


def test_a_launch_where_nothing_can_be_written_says_that_nothing_was_begun(client, small_disk):
    """The host has no run of it, and keeps nothing."""
    client.runs.symlink_to(small_disk)
    client.variables["LAUNCH_RUNS"] = str(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = client.run("--", "true")
    assert done.returncode == 1
    assert "Read-only file system\n  nothing was begun; fix this, then repeat the command\n" in done.stderr
    assert "not affected" not in done.stderr
    assert not [*(client.home / ".launch" / "runs").glob("*")]


@pytest.mark.parametrize("refuses", ["full", pytest.param("read-only", marks=pytest.mark.long)])
def test_a_picture_that_cannot_be_written_is_told_with_its_path(client, small_disk, refuses):
    """A disk that is full, or one that may not be written: no traceback, no torso, and the older picture stays."""
    client.runs.symlink_to(small_disk)
    client.variables["LAUNCH_RUNS"] = str(small_disk)
    client.script(STEP)
    run = client.detached("--", "python", "train.py")
    client.ok("attach", run)
    picture = small_disk / run / "loss.png"
    before = picture.read_bytes()
    if refuses == "full":
        with (small_disk / "all").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
    else:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = client.run("plot", run)
    assert done.returncode == 1
    assert ("No space left on device" if refuses == "full" else "Read-only file system") in done.stderr
    assert str(small_disk / run) in done.stderr
    assert picture.read_bytes() == before
    assert [path.name for path in picture.parent.glob("loss*")] == ["loss.png"]


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["ps"],
            ["attach"],
            ["logs"],
            ["metrics"],
            ["plot"],
            ["pull"],
            ["ls"],
            ["stop", "last"],
            ["rm", "last"],
        ),
        *(["exec", "last", "--", "true"], ["--", "true"], ["logs", "--host", "local", "RUN"]),
    ],
    ids=" ".join,
)
def test_a_file_in_the_place_of_the_runs_is_named_by_every_verb(client, words):
    """As it is, or above the folder that LAUNCH_RUNS names."""
    run = client.detached("--", "true") if "RUN" in words else ""
    shutil.rmtree(client.runs, ignore_errors=True)
    client.runs.write_text("mine")
    done = client.run(*(run if word == "RUN" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{client.runs} is not a folder, so runs cannot be kept in {client.runs}\n")
    assert client.runs.read_text() == "mine"


def test_a_file_on_the_way_to_the_runs_is_named(tmp_path, monkeypatch):
    """LAUNCH_RUNS may name what can never be a folder."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path / "file" / "runs"))
    with pytest.raises(UsageError, match=f"^{tmp_path}/file is not a folder"):
        runs_folder()


def test_looking_at_an_older_run_makes_it_not_the_last_one(client):
    """`--host` binds a run again: `last` stays the run that was launched last, and ages stay as they were."""
    runs = []
    for word in ("older", "newer"):
        client.script(f"print({word!r})")
        client.ok("--", "python", "train.py")
        runs += [path.name for path in client.runs.glob("[0-9]*") if path.name not in runs]
    before = client.ok("ps", "--json")
    os.utime(client.index / runs[0] / "run.json", (1, time.time() + 1000))
    assert "older" in client.ok("logs", runs[0], "--host", "local")
    assert "newer" in client.ok("logs", "last")
    assert client.ok("ps", "--json") == before


def test_an_entry_that_says_no_host_ends_no_listing(client):
    """A spoilt run.json costs its own row, which says so; `--host` mends it."""
    for _ in range(2):
        client.script("print('hi')")
        client.ok("--", "python", "train.py")
    spoilt, whole = sorted(path.name for path in client.runs.glob("[0-9]*"))
    for text in ("", "null", "[1]", "{}", '{"host": {"name": 7}}', '{"host": null}'):
        (client.index / spoilt / "run.json").write_text(text)
        rows = {row["run"]: row for row in json.loads(client.ok("ps", "--json"))["runs"]}
        assert rows[spoilt]["problem"] == f"{client.index / spoilt / 'run.json'} is damaged"
        assert rows[whole]["problem"] is None
        refused = client.run("stop", spoilt)
        assert (refused.returncode, f"launch attach --host HOST {spoilt[-6:]}" in refused.stderr) == (1, True)
        assert spoilt[-6:] in client.ok("ps")
        client.ok("logs", spoilt, "--host", "local")
        assert client.summary(spoilt)["problem"] is None


INTERRUPTED_AS_IT_IS_BOUND = """
import os, signal
from launcher.copy.local_copy import LocalCopy
bind = LocalCopy.bind
def bound(*words):
    bind(*words)
    os.kill(os.getpid(), signal.SIGINT)
LocalCopy.bind = bound
from launcher.cli import main
main()
"""


def test_ctrl_c_just_before_the_start_leaves_a_run_that_is_named(client):
    """Once it is on record here it is started, and nobody says that nothing is left of it: a rented machine would be kept for it."""
    client.is_forked = False
    client.program = [sys.executable, "-c", INTERRUPTED_AS_IT_IS_BOUND]
    done = client.run("--", "true")
    (run,) = [path.name for path in client.runs.glob("2*")]
    assert done.returncode == 0, done.stderr
    assert "interrupted before the run began" not in done.stderr
    assert "detached" in done.stderr
    assert not done.stdout  # only --detach puts the id there
    client.ok("attach", run)
