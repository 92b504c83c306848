"""Several clients at once, hosts and disks that refuse: a run's client tells it, and ends as the run did."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import pytest
from testbed.client import until

from launcher.errors import AgentError, ConnectionLostError, MalformedAnswerError, RunError, UsageError
from launcher.hosts.agent_desk import AgentDesk
from launcher.hosts.channel import Channel
from launcher.remote.record.rundir import Run
from launcher.remote.store.manifest import ShippingError
from launcher.remote.store.shipping import send_artifacts
from launcher.runs.following import pull
from launcher.runs.mirror import Mirror, runs_folder

pytestmark = pytest.mark.slow(reason="each test starts several clients and a run")

RUN = "0101-sft-w8q2"
STEPS = 2000
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
        for line in self.process.stdout:
            self.text += line

    def steps(self):
        """Return the steps that it has shown."""
        return [int(step) for step in re.findall(r"^ +step +(\d+)", self.text, re.MULTILINE)]

    def end(self):
        """Wait for its end; return its exit code and all that it said."""
        self.process.wait(timeout=60)
        self._thread.join()
        return self.process.returncode, self.text + self.process.stderr.read()

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


def sums(folder, *patterns):
    """SHA-256 of files below a folder, by sha256sum."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for one in patterns
        for path in folder.glob(one)
        if path.is_file() and path.name not in ("lock", "heartbeat")
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


def test_two_who_follow_one_run_from_one_folder_do_not_hurt_each_other(client, hear):
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


def waits_for_a_lock(pid):
    """Whether the kernel says so."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1] == "->" and words[5] == str(pid) for words in lines)


def test_two_who_pull_one_run_at_once_both_have_all_of_it(client):
    """One is held up in the middle while another pulls: whoever ends last, every artifact is in its place."""
    sizes = {"a": 60_000_000, "b": 1000, "c": 1000}
    client.script(MAKES.format(sizes=sizes))
    client.script(JOB.format(steps=1), "x.toml")
    client.ok("--job", "x.toml")
    (run,) = (path.name for path in client.runs.glob("[0-9]*"))
    shutil.rmtree(client.runs / run / "artifacts")
    first = client.start("pull", run)
    while not list(
        (client.runs / run / "artifacts.part").rglob("a")
    ):  # no rest: it is to be caught in the act
        assert first.poll() is None
    first.send_signal(signal.SIGSTOP)
    second = client.start("pull", run)
    until(lambda: second.poll() is not None or waits_for_a_lock(second.pid), "the second to end or to wait")
    first.send_signal(signal.SIGCONT)
    for process in (first, second):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
        assert "3 files" in out
    assert sums(client.runs / run / "artifacts", "*") == sums(there(client, run) / "work" / "artifacts", "*")
    assert not (client.runs / run / "artifacts.part").exists()


def test_what_a_killed_client_had_pulled_is_removed_by_the_next(client):
    """No half of an artifact stays, and none gets into its place."""
    client.script(MAKES.format(sizes={"a": 1000}))
    client.script(JOB.format(steps=1), "x.toml")
    client.ok("--job", "x.toml")
    (run,) = (path.name for path in client.runs.glob("[0-9]*"))
    (client.runs / run / "artifacts.part" / "new").mkdir(parents=True)
    (client.runs / run / "artifacts.part" / "new" / "a").write_text("half")
    client.ok("pull", run)
    assert sums(client.runs / run / "artifacts", "*") == sums(there(client, run) / "work" / "artifacts", "*")
    assert not (client.runs / run / "artifacts.part").exists()


@pytest.mark.testbed
def test_an_artifact_that_the_host_cannot_read_is_named_and_the_others_come_home(client, lab):
    """The run has succeeded: exit code 0, what is missing and why, and the command that fetches it later."""
    client.script(
        MAKES.format(sizes={"good": 5000, "secret": 1000})
        + "os.chmod(os.path.join(w.knobs().artifacts, 'secret'), 0)\n"
    )
    client.script(JOB.format(steps=1), "x.toml")
    process = client.start("--host", "A", "--job", "x.toml")
    out, err = process.communicate(timeout=60)
    (run,) = (path.name for path in client.runs.glob("[0-9]*"))
    assert process.returncode == 0, out + err
    assert "secret (Permission denied)" in out
    assert f"launch pull {run[-6:]}" in out
    assert os.listdir(client.runs / run / "artifacts") == ["good"]
    again = client.run("pull", run)
    assert again.returncode == 1
    assert "secret (Permission denied)" in again.stderr
    lab.ssh("chmod", "600", f"{lab.root}/runs/{run}/work/artifacts/secret")
    assert "2 files" in client.ok("pull", run)


def test_a_full_disk_here_ends_no_run_and_is_not_taken_for_a_lost_link(client, small_disk):
    """The artifacts do not fit: the path, the reason, exit code 0 for the run that succeeded, 1 for the pull."""
    client.runs.symlink_to(small_disk)
    client.script(MAKES.format(sizes={"large": 8_000_000}))
    client.script(JOB.format(steps=1), "x.toml")
    process = client.start("--job", "x.toml")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    (run,) = (path.name for path in small_disk.glob("[0-9]*"))
    assert "large: No space left on device" in out
    assert f"launch pull {run[-6:]}" in out
    assert "no link" not in out
    done = client.run("pull", run, timeout=60)
    assert (done.returncode, "large: No space left on device" in done.stderr) == (1, True)
    assert record(client.runs / run) == record_on_host(there(client, run))


def test_a_log_that_does_not_fit_is_told_with_its_path(client, small_disk):
    """`launch logs` on a full disk: the file and the reason, no traceback, exit code 1."""
    client.runs.symlink_to(small_disk)
    client.script("print('x' * 8_000_000)")
    run = client.detached("--", "python", "train.py")
    until(lambda: client.summary(run, "--host", "local")["state"] == "succeeded", "its end")
    done = client.run("logs", run)
    assert done.returncode == 1
    assert "log.txt: No space left on device" in done.stderr


STEP = "import launcher_worker as w\nfor step in (1, 2): w.log(step, loss=1 / step)\nw.done(2)\n"


@pytest.fixture
def full_disk(small_disk):
    """A file system without room for another byte."""
    with (small_disk / "all").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    return small_disk


def test_what_tensorboard_could_not_write_only_at_its_end_is_told(client, full_disk):
    """A run that has ended sends all at once, and the disk refuses when the last of it is flushed."""
    client.script(STEP)
    run = client.detached("--", "python", "train.py")
    client.ok("attach", run)
    shutil.rmtree(client.runs / run / "tensorboard")
    (client.runs / run / "tensorboard").symlink_to(full_disk)
    said = client.ok("attach", run)
    assert f"no more for TensorBoard: {client.runs / run}/tensorboard: No space left on device" in said
    assert "succeeded" in said


@pytest.mark.parametrize("refuses", ["full", "read-only"])
def test_a_picture_that_cannot_be_written_is_told_with_its_path(client, small_disk, refuses):
    """A disk that is full, or one that may not be written: no traceback, no torso, and the older picture stays."""
    client.runs.symlink_to(small_disk)
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
        *(["ps"], ["attach"], ["logs"], ["metrics"], ["plot"], ["pull"], ["stop", "last"], ["rm", "last"]),
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
    os.utime(client.runs / runs[0] / "client.json", (1, time.time() + 1000))
    assert "older" in client.ok("logs", runs[0], "--host", "local")
    assert "newer" in client.ok("logs", "last")
    assert client.ok("ps", "--json") == before


@pytest.mark.parametrize("text", ["", "null", "[1]", "{}", '{"host": {"name": 7}}', '{"host": null}'])
def test_a_mirror_that_says_no_host_ends_no_listing(client, text):
    """A spoilt client.json costs its own row, which says so; `--host` mends it."""
    for _ in range(2):
        client.script("print('hi')")
        client.ok("--", "python", "train.py")
    spoilt, whole = sorted(path.name for path in client.runs.glob("[0-9]*"))
    (client.runs / spoilt / "client.json").write_text(text)
    assert "does not name the host of" in str(client.summary(spoilt)["problem"])
    assert client.summary(whole)["problem"] is None
    assert spoilt[-6:] in client.ok("ps")
    client.ok("logs", spoilt, "--host", "local")
    assert client.summary(spoilt)["problem"] is None


class Tampers:
    """A wire that gathers a stream, and does something to a file at its first piece."""

    def __init__(self, tamper):
        self.data = b""
        self._tamper = tamper

    def write(self, message, payload=b""):
        """Take a piece."""
        if self._tamper:
            self._tamper()
            self._tamper = None
        self.data += payload


@pytest.fixture
def sender(tmp_path):
    """A run on the host with one large artifact."""
    run = Run(str(tmp_path / RUN))
    os.makedirs(run.artifacts)
    Path(run.artifacts, "large").write_bytes(b"x" * 3_000_000)
    return run


def test_an_artifact_that_grows_while_it_is_sent_is_sent_as_it_was(sender, tmp_path):
    """The tar stays whole, and what it holds is what the manifest says."""
    path = Path(sender.artifacts, "large")
    before = subprocess.run(["sha256sum"], input=path.read_bytes(), capture_output=True, check=True).stdout
    wire = Tampers(lambda: path.write_bytes(b"x" * 5_000_000))
    files, left_out = send_artifacts(sender, wire)
    (tmp_path / "sent.tar").write_bytes(wire.data)
    subprocess.run(["tar", "-xf", "sent.tar"], cwd=tmp_path, check=True)
    assert files == {"large": {"sha256": before.split()[0].decode(), "size": 3_000_000}}
    assert left_out == {}
    assert (tmp_path / "large").read_bytes() == b"x" * 3_000_000


def test_an_artifact_that_shrinks_while_it_is_sent_is_named(sender):
    """Its end is not made up."""
    path = Path(sender.artifacts, "large")
    with pytest.raises(ShippingError, match="large shrank"):
        send_artifacts(sender, Tampers(lambda: os.truncate(path, 10)))


def test_hard_links_among_the_artifacts_are_files(sender, tmp_path):
    """Two names of one file are two files at home."""
    os.link(Path(sender.artifacts, "large"), Path(sender.artifacts, "twin"))
    wire = Tampers(None)
    files, _ = send_artifacts(sender, wire)
    (tmp_path / "sent.tar").write_bytes(wire.data)
    with tarfile.open(tmp_path / "sent.tar") as archive:
        assert {member.name: member.isreg() for member in archive} == dict.fromkeys(files, True)
    assert set(files) == {"large", "twin"}


class Pair:
    """Our end of a socket pair, as a link."""

    about = "a pair"

    def __init__(self, ours):
        self.settimeout, self.recv, self.sendall, self.close = (
            ours.settimeout,
            ours.recv,
            ours.sendall,
            ours.close,
        )


@pytest.fixture
def host():
    """Make agents whose host says this, whatever it is asked, and then hangs up."""
    with contextlib.ExitStack() as stack:

        def make(*said):
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            theirs.sendall(b"LAUNCH-AGENT 1 have\n" + b"".join(said))
            theirs.shutdown(socket.SHUT_WR)
            return stack.enter_context(AgentDesk(Channel("box", Pair(ours))))

        yield make


def line(payload=b"", **values):
    return json.dumps({**values, **({"size": len(payload)} if payload else {})}).encode() + b"\n" + payload


def tar_of(name, data):
    folder = Path(name)
    header = tarfile.TarInfo(str(folder))
    header.size = len(data)
    return header.tobuf() + data + b"\0" * (-len(data) % 512) + b"\0" * 1024


REFUSAL = line(id=1, error={"code": "ship", "message": "large shrank"})
TAR = tar_of("a", b"data")


@pytest.mark.parametrize("sent", [b"", TAR[:512], TAR[:700], TAR], ids=len)
def test_a_refusal_in_the_middle_of_a_pull_is_told_as_one(host, tmp_path, sent):
    """The agent's word comes out, not a broken link that would be tried again for ever."""
    pieces = [line(sent, chunk=len(sent))] if sent else []
    with pytest.raises(AgentError, match="large shrank"):
        pull(host(*pieces, REFUSAL), Mirror(RUN, tmp_path))
    assert not (tmp_path / RUN / "artifacts.part").exists()


@pytest.mark.parametrize("size", [0, 512, 700, len(TAR)])
def test_a_link_that_ends_in_the_middle_of_a_pull_is_a_lost_one(host, tmp_path, size):
    """It may be tried again."""
    sent = TAR[:size]
    with pytest.raises(ConnectionLostError):
        pull(host(*([line(sent, chunk=len(sent))] if sent else [])), Mirror(RUN, tmp_path))


END = b'{"chunk":0}\n'
WRONG = {
    "no tar": [line(b"x" * 2000, chunk=2000), END, line(id=1, ok={"files": {}})],
    "half a tar": [line(TAR[:514], chunk=514), END, line(id=1, ok={"files": {}})],
    "another hash": [line(TAR, chunk=len(TAR)), END, line(id=1, ok={"files": {"a": {"sha256": "0" * 64}}})],
    "more than it says": [line(TAR, chunk=len(TAR)), END, line(id=1, ok={"files": {}})],
    "a path that leads up": [line(evil := tar_of("../a", b"x"), chunk=len(evil)), END, line(id=1, ok={"files": {}})],
    "a list of another shape": [line(TAR, chunk=len(TAR)), END, line(id=1, ok={"files": ["a"]})],
    "a folder on this disk": [line(twice := TAR[:1024] + tar_of("a/b", b"x"), chunk=len(twice)), END, line(id=1, ok={})],
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_a_second_try_would_find_again_is_no_lost_link(host, tmp_path, what):
    """A pull that is wrong in itself is told once; what was pulled before stays in its place."""
    mirror = Mirror(RUN, tmp_path)
    mirror.artifacts.mkdir(parents=True)
    (mirror.artifacts / "before").touch()
    with pytest.raises(MalformedAnswerError if what == "a list of another shape" else RunError):
        pull(host(*WRONG[what]), mirror)
    assert os.listdir(mirror.artifacts) == ["before"]
    assert not (tmp_path / "a").exists()
