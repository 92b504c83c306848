"""Crashes that the agent answers by itself: by the class of the crash, by the knobs of the script, within a budget."""

import contextlib
import functools
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from testbed import trainer
from testbed.client import is_gone, missing, until
from testbed.tables import mostly_long
from testbed.toy import Toy

from launcher.agent.liveness.run_state import state_of
from launcher.agent.liveness.trouble import trouble_of
from launcher.agent.system import process
from launcher.agent.verbs.summary import summary

pytestmark = pytest.mark.slow(
    reason="each test starts an agent and trains for several attempts, without torch"
)

STEPS, EVERY = 12, 3
SLOW_BYTES = 1 << 40


class Trained:
    """A run of the standard library's trainer, and its ledger outside of it."""

    def __init__(self, toy: Toy, hook: str = "", step_s: float = 0.0, **plan) -> None:
        self.toy = toy
        self.ledger = toy.home / "samples"
        split = {"global_batch": trainer.GLOBAL_BATCH, "ranks": 1, "micro_batch": 4, "accumulation": 1}
        command = ["python3", "train.py", str(self.ledger), str(step_s)]
        told = {"steps": STEPS, "save_every_steps": EVERY, "keep_checkpoints": 2, "split": split, **plan}
        toy.plan(command=command, **told)
        (Path(toy.run.code) / "train.py").write_text(trainer.source(hook))

    def judge(self) -> int:
        """Every sample once and in order, but for an interval; return how many steps were done again."""
        model = Path(self.toy.run.artifacts, "model")
        return trainer.judge(self.ledger, model, self.toy.whole_plan()["steps"], EVERY)

    def begins(self) -> list[int]:
        """Behind which step each start of the trainer began."""
        return [done[0] for done in trainer.attempts(self.ledger)]

    def pids(self) -> list[int]:
        """The trainer's process of each start."""
        return [line["pid"] for line in trainer.read(self.ledger) if "begin" in line]

    def until_step(self, step: int) -> None:
        """Wait for a step, of whichever start."""
        until(lambda: any(line.get("step") == step for line in trainer.read(self.ledger)), f"step {step}")


def once(at: int, body: str) -> str:
    """A hook that does something at a step of the first attempt alone."""
    return f"def train(step):\n    if step == {at} and plan.attempt == 1:\n        {body}\n"


def always(at: int, body: str) -> str:
    """A hook that does something at a step of every attempt."""
    return f"def train(step):\n    if step == {at}:\n        {body}\n"


def remedies(toy):
    return [(event["values"]["class"], event["values"]["text"]) for event in toy.events("remedy")]


# where a remedy goes on

NAMELESS = "os.rename(checkpoints + '/step-6', checkpoints + '/.step-6.new'); os._exit(7)"
DAMAGED = "os.truncate(checkpoints + '/step-6/model.bin', 9); os._exit(7)"


@pytest.mark.parametrize(
    ("body", "said", "begun"), [(NAMELESS, 6, 6), (DAMAGED, 6, 3)], ids=["without its name", "damaged"]
)
def test_a_remedy_names_the_step_that_the_next_attempt_begins_behind(toy, body, said, begun):
    """By the training's ledger; what is known only once the checkpoint was read is said in the next attempt, and by `ps`."""
    run = Trained(toy, once(8, f"checkpoints = os.path.join(plan.artifacts, '../checkpoints'); {body}"))
    assert toy.ended()["state"] == "succeeded"
    assert run.begins() == [0, begun]
    assert [text.rpartition("; ")[2] for _, text in remedies(toy)] == [f"resuming from step {said}"]
    shown = (toy.record(3, "attempt")["remedy"], summary(toy.run, state_of(toy.run))["remedy"])
    assert [one["text"] for one in shown] == [f"a new attempt; resuming from step {begun}"] * 2


# what is tried again, and what is not


@mostly_long(
    ("body", "name"),
    [
        ("os._exit(7)", "unknown"),
        ("os.kill(os.getpid(), 9)", "preempted"),
        ("os.kill(os.getpid(), 11)", "unknown"),
        (
            "raise RuntimeError('NCCL error in: x.cpp:12, remote process exited or there was a network error')",
            "nccl-error",
        ),
        ("raise OSError(98, 'Address already in use')", "port-in-use"),
    ],
    ci=(0, 3),
)
def test_what_may_pass_is_tried_once_more_from_the_last_checkpoint(toy, body, name):
    """No sample is left out, and none is seen again but those after the checkpoint."""
    run = Trained(toy, once(8, body))
    assert toy.ended()["state"] == "succeeded"
    assert run.begins() == [0, 6]
    assert run.judge() == 2
    (told,) = remedies(toy)
    assert told[0] == name
    assert told[1].endswith("; resuming from step 6")


@mostly_long(
    ("body", "reason"),
    [
        ("os._exit(7)", "exit-nonzero"),
        ("os.kill(os.getpid(), 11)", "killed-by-signal"),
        (
            "raise RuntimeError('NCCL error in: x.cpp:12, remote process exited or there was a network error')",
            "nccl-error",
        ),
    ],
    ci=(0, 1),
)
def test_what_happens_again_at_the_same_place_is_the_end(toy, body, reason):
    """Once more, and no more; the evidence says what a person can do."""
    run = Trained(toy, always(8, body))
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", reason)
    assert run.begins() == [0, 6]
    assert ended["evidence"]["mend"]


@mostly_long(
    ("body", "reason"),
    [
        ("raise KeyError('labels')", "user-code-error"),
        ("raise ModuleNotFoundError(\"No module named 'flash_attn'\")", "missing-dependency"),
        ("raise RuntimeError('CUDA error: device-side assert triggered')", "device-side-assert"),
    ],
    ci=(0, 2),
)
def test_what_would_fail_in_the_same_way_again_is_not_tried_again(toy, body, reason):
    """However well the script could resume."""
    run = Trained(toy, always(8, body))
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", reason)
    assert run.begins() == [0]
    assert (reason == "user-code-error" and "KeyError" in ended["evidence"]["line"]) or ended["evidence"][
        "mend"
    ]


def test_what_only_a_client_can_mend_is_waited_for(toy):
    """Neither an end, nor another attempt; class and mend are told."""
    error = "CUDA error: no kernel image is available for execution on the device"
    run = Trained(toy, always(8, f"raise RuntimeError({error!r})"))
    keeper = toy.start()
    assert keeper.wait(60) == 0
    waiting = toy.state()
    assert (waiting["state"], waiting["reason"]) == ("waiting", "image")
    assert waiting["evidence"]["class"] == "no-kernel-image"
    assert waiting["evidence"]["mend"]
    assert run.begins() == [0]


def test_a_crash_now_and_then_is_no_crash_at_the_same_place(toy):
    """A budget begins anew with every checkpoint: three of a kind, each a good way further."""
    hook = "def train(step):\n    if step in (4, 7, 11) and step - plan.attempt in (3, 5, 8):\n        os._exit(7)\n"
    run = Trained(toy, hook)
    assert toy.ended()["state"] == "succeeded"
    assert run.begins() == [0, 3, 6, 9]
    assert run.judge() == 0 + 1 + 1 + 2


def test_the_job_s_attempts_bound_what_is_tried(toy):
    """Whatever the budget of a class."""
    run = Trained(toy, once(8, "os._exit(7)"), attempts=1)
    assert toy.ended()["reason"] == "attempts-exhausted"
    assert run.begins() == [0]


def test_a_script_that_never_asks_where_to_resume_is_not_started_twice(toy):
    """It may have done what must not be done twice; a job that says `restart` knows better."""
    toy.script("write(begun=True)\nos._exit(7)\n")
    assert toy.ended()["reason"] == "exit-nonzero"
    assert len([line for line in toy.ledger() if "begun" in line]) == 1


# knobs


OOM = (
    "raise MemoryError('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of "
    "23.64 GiB of which 412.00 MiB is free. {more}this process has 22.80 GiB memory in use.')"
)


def test_a_full_card_gets_smaller_micro_batches_and_the_same_global_batch(toy):
    """Halved until it fits; the script sees the values, and the samples stay the same."""
    hook = (
        f"if plan.split.micro_batch > 1:\n    def train(step):\n        if step == 5: {OOM.format(more='')}\n"
    )
    run = Trained(toy, hook)
    assert toy.ended()["state"] == "succeeded"
    assert [toy.record(number, "attempt")["split"]["micro_batch"] for number in (2, 3, 4)] == [4, 2, 1]
    assert run.begins() == [0, 3, 3]
    run.judge()
    assert remedies(toy)[0][1] == (
        "micro-batch 4 → 2, accumulation 1 → 2 (global batch stays 4); resuming from step 3"
    )


def test_a_card_that_others_have_filled_is_not_met_by_a_smaller_batch(toy):
    """It would not help; who they are is told."""
    hook = always(5, OOM.format(more="Process 881 has 20.10 GiB memory in use. ").replace("22.80", "2.80"))
    run = Trained(toy, hook)
    ended = toy.ended()
    assert (ended["reason"], run.begins()) == ("cuda-oom", [0])
    assert "process 881 with 20.1 GiB" in ended["evidence"]["mend"]


@pytest.fixture
def little_memory():
    """The words that put a process, and all below it, into a group of the kernel's with 150 MB of memory."""
    for mount, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(mount, f"launch-test-{os.getpid()}")
        try:
            group.mkdir()
            (group / limit).write_text("150000000")
        except OSError:
            continue
        yield "sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"
        until(lambda group=group: not (group / "cgroup.procs").read_text(), "the group to be empty")
        group.rmdir()
        return
    missing("a group with little memory needs root and cgroups")


@pytest.mark.testbed
def test_what_the_kernel_killed_for_memory_has_half_as_many_loaders_next_time(toy, little_memory):
    """By its own count: a plain SIGKILL is none (see above)."""
    hook = (
        "loaders = plan.loader_workers\n"
        "def train(step):\n    if step == 5 and loaders > 1:\n        bytearray(400_000_000)\n"
    )
    run = Trained(toy, hook, loader_workers=4)
    toy.wait(toy.start(*little_memory))
    assert toy.state()["state"] == "succeeded"
    assert [toy.record(number, "attempt")["loader_workers"] for number in (2, 3, 4)] == [4, 2, 1]
    assert run.begins() == [0, 3, 3]
    assert [text for _, text in remedies(toy)] == [
        "loader workers 4 → 2; resuming from step 3",
        "loader workers 2 → 1; resuming from step 3",
    ]


# hangs


HANG = once(8, "time.sleep(10000)  # hung here")


def test_a_hang_is_told_with_its_stacks_and_tried_once_more(toy):
    """Nobody waits for ever; where it hung stands in the log, what it waited for in the record."""
    run = Trained(toy, HANG, step_s=0.02, hang_minutes=2 / 60)
    assert toy.ended()["state"] == "succeeded"
    assert run.judge() == 2
    log = Path(toy.run.record, "0002", "log.txt").read_text()
    assert "train.py" in log
    assert " in train" in log
    (told,) = [one["values"]["hang"] for one in toy.events("evidence") if "hang" in one["values"]]
    assert [one["pid"] for one in told["processes"] if one["stacks"]] == run.pids()[:1]
    assert is_gone(run.pids()[0])
    assert remedies(toy)[0][0] == "hang"


def test_a_child_that_would_die_of_the_question_is_not_asked(toy):
    """SIGUSR2 ends whoever has no answer to it; the child of a hung trainer is ended with it, not before."""
    hook = once(8, "subprocess.Popen(['sleep', '10000']); time.sleep(10000)").replace(
        "def", "import subprocess\ndef", 1
    )
    Trained(toy, hook, step_s=0.02, hang_minutes=2 / 60)
    assert toy.ended()["state"] == "succeeded"
    (told,) = [one["values"]["hang"] for one in toy.events("evidence") if "hang" in one["values"]]
    assert sorted(one["stacks"] for one in told["processes"]) == [False, True]
    for one in told["processes"]:
        assert is_gone(one["pid"])


def test_a_slow_step_is_no_hang_and_nor_is_one_that_speaks(toy):
    """Output and progress count."""
    hook = "def train(step):\n    for _ in range(8 if step == 8 else 0):\n        time.sleep(0.3)\n        print('still here')\n"
    run = Trained(toy, hook, step_s=0.02, hang_minutes=1.2 / 60)
    assert toy.ended()["state"] == "succeeded"
    assert run.begins() == [0]


# asked to end


def test_sigterm_from_outside_saves_and_goes_on_by_itself(toy):
    """A person's kill, or a scheduler's: the trainer saved, left with 0, and had not ended."""
    run = Trained(toy, step_s=0.05, steps=40)
    toy.start()
    run.until_step(11)
    os.kill(run.pids()[0], signal.SIGTERM)
    until(lambda: toy.state()["state"] == "succeeded", "the end")
    assert run.judge() == 0
    assert [name for name, _ in remedies(toy)] == ["preempted"]


def test_a_stop_saves_where_it_is_and_nothing_is_done_again(toy):
    """Between two checkpoints: the step that was under way is the last."""
    run = Trained(toy, step_s=0.05, steps=400, save_every_steps=300)
    toy.start()
    run.until_step(11)
    Path(toy.run.wish).write_text("stop")
    until(lambda: toy.state()["state"] == "stopped", "the end")
    (stopped,) = [line["stopped"] for line in trainer.read(run.ledger) if "stopped" in line]
    assert os.listdir(toy.run.checkpoints) == [f"step-{stopped}"]
    assert toy.state()["reason"] == "by-user"


def test_a_limit_of_time_is_kept_with_a_checkpoint_in_time(toy):
    """Over all attempts, as long as nobody gives it more."""
    run = Trained(
        toy, once(8, "os._exit(7)"), step_s=0.1, steps=4000, time_limit_minutes=6 / 60, stop_grace_s=2.0
    )
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("stopped", "time-limit")
    (stopped,) = [line["stopped"] for line in trainer.read(run.ledger) if "stopped" in line]
    assert f"step-{stopped}" in os.listdir(toy.run.checkpoints)
    assert run.begins() == [0, 6]


def _by_a_wall_clock_that_was_set():
    """Ten hours back since it was told: the boot clock counts, which nobody sets."""
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME) + 6.0
    return {"rented_until": time.time() + 36_000, "rented_uptime": uptime, "rented_boot": process.boot_id()}


def _after_a_reboot():
    """The boot clock is another one, so the wall clock counts."""
    return {"rented_until": time.time() + 6.0, "rented_uptime": 1e9, "rented_boot": "another"}


@mostly_long(
    "told",
    [lambda: {"rented_until": time.time() + 6.0}, _by_a_wall_clock_that_was_set, _after_a_reboot],
    ids=["wall", "boot", "rebooted"],
    ci=(0, 2),
)
def test_the_end_of_a_rent_saves_and_waits_for_a_client(toy, told):
    """Nothing is lost on the machine meanwhile; begun again there, it waits at once."""
    prepared = toy.record(1, "attempt")
    prepared["runtime"] |= told()
    (Path(toy.run.record) / "0001" / "attempt.json").write_text(json.dumps(prepared))
    run = Trained(toy, step_s=0.1, steps=4000, stop_grace_s=2.0)
    assert toy.start().wait(60) == 0
    ended = toy.state()
    assert (ended["state"], ended["reason"]) == ("waiting", "client")
    assert ended["evidence"]["rent"] == "its machine's time is up"
    (stopped,) = [line["stopped"] for line in trainer.read(run.ledger) if "stopped" in line]
    assert f"step-{stopped}" in os.listdir(toy.run.checkpoints)
    assert toy.start().wait(60) == 0
    assert (toy.state()["state"], toy.state()["reason"]) == ("waiting", "client")
    assert run.begins() == [0]


def test_a_rent_that_gets_more_time_has_its_run_go_on_until_then(toy):
    """What a client writes there counts at once, and not what the run was prepared with."""
    prepared = toy.record(1, "attempt")
    prepared["runtime"] |= {"rented_until": time.time() + 6.0}
    (Path(toy.run.record) / "0001" / "attempt.json").write_text(json.dumps(prepared))
    Trained(toy, step_s=0.1, steps=4000, stop_grace_s=2.0)
    began, process = time.monotonic(), toy.start()
    Path(toy.run.rented).write_text(json.dumps({"until": time.time() + 12.0}))
    assert process.wait(90) == 0
    assert time.monotonic() - began > 7
    assert (toy.state()["state"], toy.state()["reason"]) == ("waiting", "client")


@pytest.mark.slow(reason="several clients and two runs")
def test_a_client_says_from_which_attempt_on_and_how_to_go_on_with_what_ended(client):
    """What followed a crash, and what a person may do after the end."""
    toy = Toy(client.home)
    try:
        Trained(toy, always(8, "os._exit(7)"))
        toy.ended()
        out = client.run("attach", "last", "--host", "local").stderr
    finally:
        toy.clear_away()
    lines = [line.strip() for line in out.splitlines()]
    assert any(line.startswith("! attempt 1 ended at step 7: unknown") for line in lines), out
    assert "remedy: a new attempt; resuming from step 6" in lines
    assert "✓ attempt 2 running from step 6" in lines
    assert any(line.startswith("✗ failed") and "exit-nonzero" in line for line in lines)
    assert lines[-1] == "resume   launch resume aaaa     from step 6"


# checkpoints


def test_only_the_last_ones_and_the_best_are_kept(toy):
    """The best by the loss of its evaluation."""
    hook = "def train(step):\n    worker.log(step, eval_loss=abs(step - 6) + 0.5)\n"
    Trained(toy, hook)
    toy.ended()
    assert sorted(os.listdir(toy.run.checkpoints)) == ["step-12", "step-6", "step-9"]
    manifest = json.loads(Path(toy.run.checkpoints, "step-6", "manifest.json").read_text())
    told = {
        "step": 6,
        "world_size": 1,
        "precision": "fp16",
        "data": {"examples": 24, "epoch": None},
        "eval_loss": 0.5,
    }
    assert told.items() <= manifest.items()


def break_newest(toy, damage):
    """Stop a run behind two checkpoints, damage the newest, and begin again."""
    run = Trained(toy, step_s=0.05, steps=30)
    toy.start()
    run.until_step(11)
    pid = run.pids()[0]
    os.kill(toy.keepers[0].pid, signal.SIGKILL)
    os.kill(int(Path(f"/proc/{pid}/stat").read_text().split()[3]), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    until(lambda: toy.state()["state"] == "interrupted" and is_gone(pid), "its death")
    newest = max(Path(toy.run.checkpoints).glob("step-*"), key=lambda path: int(path.name[5:]))
    damage(newest)
    return run, int(newest.name[5:])


def flip_a_bit(newest):
    data = bytearray((newest / "model.bin").read_bytes())
    data[1000] ^= 1
    (newest / "model.bin").write_bytes(data)


def set_the_clock_on(newest):
    """Everything of it a year younger, and everything of the one before a year older."""
    for path in newest.parent.rglob("*"):
        now = path.stat().st_mtime
        os.utime(path, (now, now + (-1 if newest in path.parents else 1) * 365 * 86400))


DAMAGES = {
    "flipped": flip_a_bit,
    "cut": lambda newest: os.truncate(newest / "model.bin", 100),
    "lost": lambda newest: (newest / "trainer.json").unlink(),
    "without manifest": lambda newest: (newest / "manifest.json").unlink(),
    "with half a manifest": lambda newest: os.truncate(newest / "manifest.json", 30),
    "empty": lambda newest: [shutil.rmtree(newest), newest.mkdir()],
}


@mostly_long("damage", DAMAGES, ci=(0, 3))
def test_a_damaged_checkpoint_is_never_gone_on_from(toy, damage):
    """The one before it is whole, and every sample is seen."""
    run, newest = break_newest(toy, DAMAGES[damage])
    toy.wait(toy.start())
    assert toy.state()["state"] == "succeeded"
    assert run.begins() == [0, newest - EVERY]
    model = Path(toy.run.artifacts, "model")
    assert trainer.judge(run.ledger, model, 30, 2 * EVERY) <= 2 * EVERY
    told = [one["values"]["checkpoints"] for one in toy.events("evidence") if "checkpoints" in one["values"]]
    assert any(
        f"step-{newest}" in {**one.get("damaged", {}), **dict.fromkeys(one.get("torn", []))} for one in told
    )


def test_who_starts_an_attempt_need_not_wait_until_its_checkpoint_is_proven(toy):
    """To read a hundred gigabytes takes minutes: the attempt is on record before. Here it is a second's worth, which take no room on the disk."""
    run = Trained(toy)
    folder = Path(toy.run.checkpoints, "step-3")
    folder.mkdir(parents=True)
    (folder / "trainer.json").write_text(json.dumps({"step": 3}))
    (folder / "model.bin").write_text(trainer.expected(3))
    with (folder / "slow").open("wb") as slow:
        slow.truncate(512 << 20)
    files = {}
    for path in folder.iterdir():
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        files[path.name] = {"size": path.stat().st_size, "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps({"step": 3, "files": files}))
    toy.start()
    attempt = Path(toy.run.record, "0002", "attempt.json")
    until(attempt.exists, "the attempt's record")
    assert toy.state()["state"] == "preparing"
    until(lambda: toy.state()["state"] == "succeeded", "the end")
    assert run.begins() == [3]
    assert toy.record(2, "attempt")["checkpoint"]["step"] == 3


def test_a_clock_that_jumps_makes_no_checkpoint_newer(toy):
    """What counts is the step."""
    run, newest = break_newest(toy, set_the_clock_on)
    toy.wait(toy.start())
    assert run.begins() == [0, newest]
    run.judge()


def test_a_checkpoint_that_the_script_cannot_read_is_not_offered_again(toy):
    """Its files are what they were; the one before may be read."""
    hook = (
        "if found and step == 6:\n"
        "    raise RuntimeError('PytorchStreamReader failed reading zip archive: failed finding central directory')\n"
        + once(8, "os._exit(7)")
    )
    run = Trained(toy, hook)
    assert toy.ended()["state"] == "succeeded"
    assert run.begins() == [0, 3] or run.begins() == [0, 6, 3]
    assert [name for name, _ in remedies(toy)] == ["unknown", "checkpoint-corrupt"]


def test_a_damaged_file_of_data_throws_no_checkpoint_away(toy):
    """Steps were trained since: the checkpoint could be read, whatever it is that cannot."""
    run = Trained(toy, always(8, "raise RuntimeError('PytorchStreamReader failed reading zip archive: x')"))
    ended = toy.ended()
    assert (ended["state"], ended["reason"]) == ("failed", "checkpoint-corrupt")
    assert run.begins() == [0]
    assert sorted(os.listdir(toy.run.checkpoints)) == ["step-3", "step-6"]


def is_open(path: Path) -> bool:
    """Whether a process has a file open."""
    for fd in glob.glob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # a process that ended meanwhile
            if os.readlink(fd) == str(path):
                return True
    return False


def test_a_stop_is_heeded_while_a_checkpoint_is_proven(toy):
    """The file is sparse: it takes no room, and minutes to read."""
    run = Trained(toy)
    folder = Path(toy.run.checkpoints, "step-3")
    folder.mkdir(parents=True)
    with (folder / "slow").open("wb") as file:
        file.truncate(SLOW_BYTES)
    files = {"slow": {"size": SLOW_BYTES, "sha256": "ab"}}
    (folder / "manifest.json").write_text(json.dumps({"step": 3, "files": files}))
    toy.start()
    until(lambda: is_open(folder / "slow"), "the proof")
    Path(toy.run.wish).write_text("stop")
    until(lambda: toy.state()["state"] == "stopped", "the end")
    assert run.begins() == []


@pytest.mark.testbed
def test_a_disk_that_checkpoints_have_filled_is_cleared_and_the_run_ends_well(small_disk):
    """The third does not fit beside two: old ones go, one is kept from then on, and nothing is lost."""
    toy = Toy(small_disk, has_own_agent=True)
    try:
        run = Trained(toy, "")
        path = Path(toy.run.code) / "train.py"
        path.write_text(path.read_text().replace("200000", "1200000"))
        assert toy.ended()["state"] == "succeeded"
        assert len(run.begins()) == 2
        run.judge()
        assert [name for name, _ in remedies(toy)] == ["disk-full"]
        assert toy.record(3, "attempt")["keep_checkpoints"] == 1
    finally:
        toy.clear_away()


CHECKPOINT = 800_000
"""Bytes: three fit on the small disk."""
OWN_FOLDER = """        folder = os.path.join(plan.checkpoints, "step-%d" % step)
        os.makedirs(folder, exist_ok=True)
        write(folder)
        worker.save(step, folder)
"""


@pytest.fixture
def crowded(small_disk, tmp_path):
    """Start a run, by default one that saves by the worker, and fill its disk but for two thirds of a checkpoint.

    Return it with its keeper and what fills the disk. Its ledger is elsewhere.
    """
    toy = Toy(small_disk, has_own_agent=True)

    def start(saving="worker.save(step, write)"):
        flag, filler = tmp_path / "filled", small_disk / "filler"
        run = Trained(toy, always(2, f"while not os.path.exists({str(flag)!r}): time.sleep(0.01)"))
        run.ledger = tmp_path / "samples"
        toy.plan(**{**toy.whole_plan(), "command": ["python3", "train.py", str(run.ledger), "0"]})
        path = Path(toy.run.code) / "train.py"
        text = path.read_text().replace("200000", str(CHECKPOINT))
        path.write_text(text.replace("worker.save(step, write)", saving.strip()))
        keeper = toy.start()
        run.until_step(2)
        with filler.open("wb") as file:
            file.write(b"x" * (shutil.disk_usage(small_disk).free - 2 * CHECKPOINT // 3))
        flag.touch()
        return run, keeper, filler

    yield start
    toy.clear_away()


def waits(run):
    """Whether the run waits for room; what it says of that must be true."""
    state = run.toy.state()
    if (state["state"], state["reason"]) != ("resuming", "disk"):
        return False
    said = state["evidence"]["disk"]
    free, needed = re.fullmatch(r"(\S+) kB free, (\S+) MB needed for the next checkpoint", said).groups()
    assert 0 < float(free) < 534 < 1000 * float(needed) < 1100
    assert trouble_of(run.toy.run, state)["what"] == f"the run waits for room on its disk: {said}"
    return True


def beaten(run, since_s):
    """The last heartbeat, if it is newer than this."""
    heartbeat = run.toy.run.last().read_heartbeat()
    return heartbeat if heartbeat["monotonic_s"] > since_s else None


@pytest.mark.testbed
def test_a_checkpoint_that_does_not_fit_waits_for_room(crowded):
    """Nothing is trained meanwhile, and nobody needs to tell it that there is room."""
    run, keeper, filler = crowded()
    until(lambda: waits(run), "it to wait")
    assert run.begins() == [0]
    filler.unlink()
    assert run.toy.wait(keeper)["state"] == "succeeded"
    assert run.begins() == [0, 0]
    run.judge()
    assert [name for name, _ in remedies(run.toy)] == ["disk-full"]


@pytest.mark.testbed
def test_a_checkpoint_that_a_script_writes_by_itself_waits_for_room_too(crowded):
    """Its torn folder stays where it is, so that the disk is full: then what the agent has to say waits as well."""
    run, keeper, filler = crowded(OWN_FOLDER)
    (pid,) = run.pids()
    until(lambda: is_gone(pid), "its failure")
    for _ in range(2):  # the second comes once the failure is judged
        heartbeat = until(functools.partial(beaten, run, time.monotonic()), "a heartbeat")
        assert heartbeat["refused"] == "disk-full"
    filler.unlink()
    assert run.toy.wait(keeper)["state"] == "succeeded"
    assert run.begins() == [0, 0]
    run.judge()


@pytest.mark.testbed
def test_in_a_session_of_a_service_nobody_makes_room(crowded, monkeypatch):
    """Its hours would pass: it ends after one more attempt, and says what was free and needed."""
    monkeypatch.setenv("LAUNCH_SEGMENT", "1")
    run, keeper, _ = crowded()
    ended = run.toy.wait(keeper)
    assert (ended["state"], ended["reason"]) == ("failed", "disk-full")
    assert run.begins() == [0, 0]
    assert "needed for the next checkpoint" in ended["evidence"]["why"]


@pytest.mark.testbed
def test_a_run_that_waits_for_room_is_stopped_and_survives_its_agent(crowded):
    """A new agent waits on."""
    run, keeper, _ = crowded()
    until(lambda: waits(run), "it to wait")
    agent = process.find(run.toy.record(3, "attempt")["agent"]["pid"])
    process.send(agent, signal.SIGKILL)
    until(lambda: os.path.exists(run.toy.run.folder(4).state) and waits(run), "the next agent to wait")
    run.toy.run.write_wish("stop")
    ended = run.toy.wait(keeper)
    assert (ended["state"], ended["reason"]) == ("stopped", "by-user")
    assert run.begins() == [0]
