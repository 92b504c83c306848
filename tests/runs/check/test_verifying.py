"""`launch verify`, as a user types it: what it shows, what a later plan reads of it, and that nothing of it is left.

The cards are simulated: a stand-in for torch opens a context there. The job reports what the worker's trial watch would;
that one is tested in tests/worker, and with our own job at the end.
"""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from testbed.cards import uuid_of
from testbed.client import marked, until

from launcher.agent.system import process

pytestmark = pytest.mark.slow(reason="each test launches, and makes several attempts")

TORCH = """
import os, sys, types
sys.path.insert(0, os.environ["CARDS"])
import context
__version__ = "2.13.0+cu126"
float32, float16, bfloat16 = "float32", "float16", "bfloat16"

class Tensor:
    def __init__(self, *sizes, **more):
        context.open_context()
    def __getattr__(self, name):
        return lambda *words, **more: self
    def __matmul__(self, other):
        return self
    def __bool__(self):
        return True

zeros = randn = ones = Tensor
autograd = types.SimpleNamespace(grad=lambda *words, **more: words)
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace()))
card = types.SimpleNamespace(name="Tesla T4", major=7, minor=5, total_memory=16e9)
cuda = types.SimpleNamespace(
    get_device_capability=lambda: (7, 5), synchronize=lambda: None, get_device_properties=lambda index: card,
    get_arch_list=lambda: ["sm_50", "sm_75", "sm_90"],
)
version = types.SimpleNamespace(cuda="12.6")
"""
TRAIN = """
import json, os, sys, time
import launcher_worker as worker
from launcher_worker.channel import send
from launcher_worker.values import knobs
sys.path.insert(0, os.environ["CARDS"])
import context
uuid = context.open_context()
precision, split, trial = worker.knobs().precision, worker.knobs().split, knobs().trial
with open(os.environ["LEDGER"], "a") as ledger:
    print(json.dumps([trial["kind"], precision.mode, split.micro_batch, uuid]), file=ledger)
print("a line of the job")
if os.environ.get("EXITS"):
    print(*range(9), sep=os.linesep)
    raise SystemExit("no data")
if precision.mode == "fp16" and precision.base_dtype == "float16" and os.environ.get("BROKEN"):
    raise RuntimeError("CUDA error: an illegal instruction was encountered")
if split.micro_batch > 8:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB")
if trial["kind"] == os.environ.get("WAITS"):
    open(os.environ["LEDGER"] + ".waits", "w").close()
    time.sleep(600)
speed = 900.0 if precision.base_dtype == "float32" and precision.mode == "fp16" else 400.0
key = {"torch": "2.13.0+cu126", "model": "m", "trainable": "t", "precision": knobs().precision_key}
send("evidence", values={"trial": dict(
    kind=trial["kind"], steps=trial["steps"], micro_batch=split.micro_batch, cosine=0.9996, compared=6,
    tokens_per_s=speed, step_s=0.5, peak_gb=6.1, memory_of="card", scale=65536.0, skipped=2, loss_first=4.0,
    loss_last=3.0, moved=True, key=key)})
"""
JOB = """
name = "toy"
command = ["python", "train.py"]
method = "lora"
[batch]
global = 32
micro = 4
[variables]
CARDS = "{cards}"
LEDGER = "{ledger}"
{more}
"""


class Project:
    """A user with two exclusive cards, and the toy job."""

    def __init__(self, client, cards):
        self.client, self.cards = client, cards
        cards.put(*[("t4", {"compute_mode": "Exclusive_Process"})] * 2)
        self.ledger = client.home / "ledger"
        client.script(TRAIN)
        client.script(TORCH, "torch.py")
        self.job()

    def job(self, **variables):
        """Write the job, with these variables."""
        more = "\n".join(f'{name} = "{value}"' for name, value in variables.items())
        text = JOB.format(cards=self.cards.folder, ledger=self.ledger, more=more)
        (self.client.project / "toy.toml").write_text(text)

    def verify(self, *words):
        """Run the command to its end."""
        return self.client.run("verify", "--profile", "t4", "--job", "toy.toml", *words)

    def tried(self):
        """The trials that held a card, by the job's own ledger."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def check_nothing_left(self):
        """No process, no context, no lease, no run there, and no mirror here."""
        until(lambda: not marked(str(self.client.home / ".launch" / "runs")), "the end of all processes", 20)
        for index in range(2):
            holder = self.cards.start(index)
            assert holder.stdout.readline().strip() == uuid_of(index), holder.stderr.read()
            holder.kill()
            holder.wait()
        root = self.client.home / ".launch"
        assert list((root / "runs").iterdir()) == []
        leases = root / "hosts" / process.host_id() / "leases"
        held = [path for path in leases.rglob("*") if path.is_file() and path.read_text().strip()] if leases.exists() else []  # fmt: skip
        assert held == []
        assert [path for path in self.client.runs.glob("*") if path.name[0] != "."] == []


@pytest.fixture
def project(client, cards):
    return Project(client, cards)


def test_it_tries_card_rungs_and_batches_and_a_later_plan_reads_what_they_did(project):
    """On one leased card, each in a process of its own; the table is all of standard output.

    Then, on that host, the fastest rung goes first, and the micro-batch is the one that was found to fit.
    """
    before = json.loads(project.client.planned("--json", "--profile", "t4", "--job", "toy.toml"))
    assert before["plan"]["split"]["micro_batch"] == 4
    done = project.verify()
    assert done.returncode == 0, done.stderr
    uuids = {uuid for *_, uuid in project.tried()}
    assert len(uuids) == 1
    expected = [("rung", "fp32", 4), ("rung", "fp16", 4), ("rung", "fp16", 4), ("batch", "fp16", 8), ("batch", "fp16", 16)]  # fmt: skip
    assert [trial[:3] for trial in project.tried()] == expected
    assert "Tesla T4, capability 7.5: torch 2.13.0+cu126 has code for sm_75" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if "trains" in line]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert "400" in rows[0]
    assert "0.9996" in rows[0]
    assert "scale 65,536, 2 skipped" in done.stdout
    assert "the largest micro-batch in rung 1: 8; 16 ran out of memory" in done.stdout
    assert "rung 2 is the fastest here: later launches begin with it" in done.stdout
    assert "a line of the job" not in done.stdout + done.stderr
    assert "✓ rung 3   fp32: 400 tokens/s, 6.1 GB, gradient 0.9996" in done.stderr
    project.check_nothing_left()
    after = json.loads(
        project.client.planned("--json", "--profile", "t4", "--job", "toy.toml", "--set", "batch.micro=16")
    )
    first = after["plan"]["ladder"][0]
    assert (first["mode"], first["base_dtype"]) == ("fp16", "float32")
    assert first["why"].startswith("measured here: 900 tokens/s, 6.1 GB, gradient 0.9996; ")
    shown = project.client.ok("explain", "--host", "local", "--profile", "t4", "--job", "toy.toml")
    assert "measured here" not in shown  # without the host, nothing is asked of it
    shown = project.client.ok("explain", "--host", "local", "--job", "toy.toml")
    assert "measured here: 900 tokens/s" in shown
    again = project.verify("--json")
    found = json.loads(again.stdout)
    assert found["rungs"][0]["precision"]["base_dtype"] == "float32"
    assert found["largest_micro_batch"] == {"rung": 1, "fits": 8, "too_large": 16}
    afterwards = json.loads(
        project.client.planned("--json", "--profile", "t4", "--job", "toy.toml", "--set", "batch.micro=16")
    )
    assert afterwards["plan"]["split"]["micro_batch"] == 8


@pytest.mark.long
def test_a_first_rung_that_fails_is_exit_code_1_and_says_which_works(project):
    """Each rung's own failure is in its row, and in the JSON."""
    project.job(BROKEN="1")
    done = project.verify("--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["kind"], found["works"], found["state"]) == ("verification", False, "succeeded")
    assert [rung["works"] for rung in found["rungs"]] == [False, True, True]
    assert "illegal instruction" in found["rungs"][0]["line"]
    assert "rung 1 does not work here; rung 2 works" in found["conclusions"]
    assert found["largest_micro_batch"]["rung"] == 2
    project.check_nothing_left()


@pytest.mark.long
def test_a_job_that_trains_nowhere_shows_what_it_printed_last(project):
    """Of the first rung, whose log is gone; and the command whose log stays."""
    project.job(EXITS="1")
    done = project.verify()
    assert done.returncode == 1
    assert "rung 1 printed last:\n  5\n  6\n  7\n  8\n  no data\nno rung works here\n" in done.stdout
    assert "to see the complete output   launch --profile t4 --job toy.toml" in done.stdout
    project.check_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "at", [*(pytest.param(one, marks=pytest.mark.long) for one in ("rung", "batch")), "start"]
)
def test_interrupted_it_leaves_nothing(project, number, at):
    """On card, disk or lease; whether before it began, in a trial or at its end."""
    project.job(**({"WAITS": at} if at != "start" else {}))
    client = project.client.start("verify", "--profile", "t4", "--job", "toy.toml")
    waits = Path(f"{project.ledger}.waits")
    runs = project.client.home / ".launch" / "runs"
    until(lambda: waits.exists() if at != "start" else runs.exists() and any(runs.iterdir()), "the moment")
    os.kill(client.pid, number)
    out, err = client.communicate(timeout=180)
    assert client.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], err
    assert "Traceback" not in err
    assert out == ""
    project.check_nothing_left()


@pytest.mark.long
def test_a_second_interrupt_does_not_leave_the_card_held(project):
    """While it removes what it has begun, it cannot be interrupted."""
    project.job(WAITS="rung")
    client = project.client.start("verify", "--profile", "t4", "--job", "toy.toml")
    until(Path(f"{project.ledger}.waits").exists, "the trial")
    os.kill(client.pid, signal.SIGINT)
    for _ in range(20):
        if client.poll() is not None:
            break
        os.kill(client.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(0.1)
    client.communicate(timeout=180)
    project.check_nothing_left()


@pytest.mark.long
def test_a_client_that_is_killed_leaves_a_run_that_ends_by_itself(project):
    """Nobody follows it then: it is listed, and `launch rm` removes it; neither rerun nor resume takes it up."""
    project.job(WAITS="batch")
    client = project.client.start("verify", "--profile", "t4", "--job", "toy.toml")
    until(Path(f"{project.ledger}.waits").exists, "the trial")
    client.kill()
    client.communicate()
    [run] = (path.name for path in project.client.runs.iterdir() if path.name[0] != ".")
    project.client.ok("stop", "--now", run)
    for verb in ("rerun", "resume"):
        done = project.client.run(verb, run)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "is a verification" in done.stderr
        assert "launch verify" in done.stderr
    project.client.ok("rm", "--force", "--here", run)
    project.check_nothing_left()


def test_a_script_that_decides_its_own_precision_is_refused(client):
    """Every trial would be the same; nothing was sent."""
    client.script("print('own')", "own.py")
    done = client.run("verify", "--", "python", "own.py")
    assert done.returncode == 3
    assert "your script decides its own precision" in done.stderr
    assert "--adapt" in done.stderr
    assert [path for path in client.runs.glob("*") if path.name[0] != "."] == []


def test_words_that_are_no_option_are_told(client):
    """With what was probably meant."""
    done = client.run("verify", "sft")
    assert done.returncode == 2
    assert "launch verify --job JOB" in done.stderr


@pytest.mark.training
@pytest.mark.long
def test_our_own_job_is_verified_by_rehearsal(client, copy_demo):
    """Real trainings, in all precisions of a TITAN RTX: finite, dtypes as planned, gradients near fp32's."""
    pytest.importorskip("peft")
    copy_demo(client.home / ".launch")
    words = ("--rehearse", "--profile", "titan_rtx", "--job", "sft", "--set", "batch.global=4", "--json")
    done = client.run("verify", *words, timeout=400)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [rung["result"] for rung in found["rungs"]] == ["good"] * 3
    assert [rung["precision"]["base_dtype"] for rung in found["rungs"]] == ["float16", "float32", "float32"]
    assert [rung["differs"] for rung in found["rungs"]] == [[]] * 3
    cosines = [rung["measured"]["cosine"] for rung in found["rungs"]]
    assert cosines[2] == pytest.approx(1.0, abs=1e-9)
    assert all(0.99 < cosine < 1.0 for cosine in cosines[:2])
    assert all(rung["measured"]["moved"] for rung in found["rungs"])
    assert found["rungs"][0]["measured"]["scale"] > 1
    assert found["card"] is None
    assert "Nothing is remembered" in " ".join(found["conclusions"])
    assert not list((client.home / ".launch" / "hosts").rglob("evidence/*.json"))
    assert list((client.home / ".launch" / "runs").iterdir()) == []
