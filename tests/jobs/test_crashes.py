"""Real trainings that crash, by `sft` and real torch: what they end with is what an uninterrupted one ends with."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from testbed.client import missing, until, until_left

pytestmark = pytest.mark.training

STEPS, EVERY = 12, 4
WORDS = (
    "--job", "./job.toml", "--set", f"steps={STEPS}", "--set", f"save_every_steps={EVERY}", "--set", "batch.global=4",
    "--set", "settings.lora_dropout=0.1",
)  # fmt: skip
QLORA = ("--set", "method=qlora")

# A card that holds two examples at a time: torch's own error, where a third one comes.
SMALL_CARD = """
import runpy
import torch
from transformers import Trainer

plain = Trainer.training_step

def training_step(self, model, inputs, *rest):
    if self.state.global_step >= 5 and len(inputs["input_ids"]) > 2:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of 23.64 GiB of which 412.00 MiB is "
            "free. Including non-PyTorch memory, this process has 22.80 GiB memory in use."
        )
    return plain(self, model, inputs, *rest)

Trainer.training_step = training_step
runpy.run_path("sft.py", run_name="__main__")
"""


class Ended:
    """A run, waited for to its end, and what lies on its host."""

    def __init__(self, client, run: str, root: Path | None = None) -> None:
        self.folder = (root or client.home / ".launch") / "runs" / run
        until_left(self.folder)
        self.state = client.summary(run)
        assert self.state["state"] == "succeeded", self.state

    @property
    def adapter(self) -> str:
        """The SHA-256 of the adapter's weights."""
        path = self.folder / "work" / "artifacts" / "adapter" / "adapter_model.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def weights(self):
        """The adapter's weights, by name."""
        from safetensors.torch import load_file

        return load_file(self.folder / "work" / "artifacts" / "adapter" / "adapter_model.safetensors")

    def events(self, kind):
        """The events of a kind, of all attempts."""
        lines = [
            json.loads(line)
            for path in sorted(self.folder.glob("record/[0-9]*/events.jsonl"))
            for line in path.read_text().splitlines()
        ]
        return [line for line in lines if line["kind"] == kind]

    def begins(self):
        """Behind which step each training began."""
        return [event["values"]["step"] for event in self.events("begin")]

    def losses(self):
        """The loss of each step, by the latest attempt."""
        steps = [
            (one["step"], one["values"]["loss"]) for one in self.events("metric") if "loss" in one["values"]
        ]
        return dict(steps)


def write_job(client, *command):
    """Let the job have another command."""
    path = client.project / "job.toml"
    path.write_text(re.sub("command = .*", lambda _: f"command = {json.dumps(command)}", path.read_text()))


def trained(client, *command, words=()):
    """Train to the end."""
    write_job(client, *command)
    return Ended(client, client.detached(*WORDS, *words))


def killed_at(path):
    """A command whose first start is killed as it opens a file of its second checkpoint, by a tracer outside of it."""
    script = (
        f"if mkdir ../once; then exec strace -f -o ../trace -P $(realpath ..)/checkpoints/checkpoint-8/{path} "
        "-e trace=openat -e inject=openat:signal=KILL python sft.py; else exec python sft.py; fi"
    )
    return "sh", "-c", script


@pytest.mark.long
def test_what_crashed_ends_with_the_same_bits_as_what_did_not(sft_project):
    """Weights, optimizer, schedule, dice and data position come back: between two checkpoints, and within one."""
    if shutil.which("strace") is None:
        missing("strace is not installed")
    whole = trained(sft_project, "python", "sft.py")
    assert whole.begins() == [0]
    for path in ("optimizer.pt", "manifest.json.tmp"):
        torn = trained(sft_project, *killed_at(path))
        assert "SIGKILL" in (torn.folder / "work" / "trace").read_text()
        assert torn.begins() == [0, 4], path
        assert (torn.adapter, torn.losses()) == (whole.adapter, whole.losses()), path
        told = [
            one["values"]["checkpoints"] for one in torn.events("evidence") if "checkpoints" in one["values"]
        ]
        (aside,) = (torn.folder / "work" / "checkpoints").glob(".aside-*")
        assert told == [{"torn": ["checkpoint-8"], "aside": {"checkpoint-8": f"{aside.name}/checkpoint-8"}}]
        assert (aside / "checkpoint-8").is_dir()
        left = {one.name for one in aside.parent.iterdir() if one.is_dir()}
        assert left == {"checkpoint-8", "checkpoint-12", aside.name}
    write_job(sft_project, "python", "sft.py")
    run = sft_project.detached(*WORDS)
    ended = sft_project.home / ".launch" / "runs" / run
    until(
        lambda: (ended / "work" / "checkpoints" / "checkpoint-4" / "manifest.json").exists(),
        "a checkpoint",
        120,
    )
    (pid,) = [int(one["values"]["pid"]) for one in states(ended) if one["values"].get("state") == "running"]
    os.kill(pid, signal.SIGKILL)
    assert Ended(sft_project, run).adapter == whole.adapter


@pytest.mark.long
def test_over_a_base_in_4_bits_what_crashed_ends_with_the_same_bits_too(sft_project):
    """Trained on a CPU. The adapter loads with peft alone, over the base as it was saved."""
    pytest.importorskip("bitsandbytes")
    if shutil.which("strace") is None:
        missing("strace is not installed")
    whole = trained(sft_project, "python", "sft.py", words=QLORA)
    torn = trained(sft_project, *killed_at("manifest.json.tmp"), words=QLORA)
    assert torn.begins() == [0, 4]
    assert (torn.adapter, torn.losses()) == (whole.adapter, whole.losses())
    (proof,) = [one["values"]["proof"] for one in whole.events("evidence") if "proof" in one["values"]][:1]
    assert proof["dtypes"] == {"trainable": {"float32": 14}, "frozen": {"float32": 5, "nf4": 7}}

    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(sft_project.project / "base")
    adapted = PeftModel.from_pretrained(base, whole.folder / "work" / "artifacts" / "adapter")
    moved = {name: one for name, one in adapted.named_parameters() if "lora_B" in name}
    assert len(moved) == 7
    assert all(one.any() for one in moved.values())


def states(folder):
    lines = [
        json.loads(line)
        for path in folder.glob("record/[0-9]*/events.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [line for line in lines if line["kind"] == "state"]


@pytest.mark.long
def test_a_full_card_goes_on_with_smaller_micro_batches_to_the_same_result(sft_project):
    """Same examples, same schedule; the sums are taken in another order, so it is the same within a tolerance."""
    (sft_project.project / "small_card.py").write_text(SMALL_CARD)
    plain = ("--set", "settings.lora_dropout=0.0")  # its dice fall otherwise for other shapes
    whole = trained(sft_project, "python", "sft.py", words=plain).weights()
    small = trained(sft_project, "python", "small_card.py", words=plain)
    assert small.begins() == [0, 4]
    (remedy,) = small.events("remedy")
    assert (remedy["values"]["class"], remedy["values"]["changes"]) == (
        "cuda-oom",
        {"micro_batch": 2, "accumulation": 2},
    )
    for name, weight in small.weights().items():
        assert (weight - whole[name]).abs().max() < 1e-4, name


@pytest.mark.long
@pytest.mark.testbed
def test_a_disk_that_fills_up_under_a_trainer_s_checkpoint_is_cleared(sft_project, small_disk):
    """Torch says it in its own words; the old checkpoint goes, and the training ends as if nothing had been."""
    subprocess.run(["mount", "-o", "remount,size=1200m", small_disk], check=True)  # the gate asks for 1 GB
    (sft_project.project / "launch.toml").write_text(f'[hosts.local]\nroot = "{small_disk}"\n')
    write_job(sft_project, "python", "sft.py")
    run = sft_project.detached(
        *WORDS, "--set", "steps=60", "--set", "keep_checkpoints=3", "--set", "settings.lora_rank=256"
    )
    folder = small_disk / "runs" / run
    until(
        lambda: (folder / "work" / "checkpoints" / "checkpoint-8" / "manifest.json").exists(),
        "two checkpoints",
        120,
    )
    size = room_of(folder / "work" / "checkpoints" / "checkpoint-4")
    disk = os.statvfs(small_disk)
    others = (disk.f_blocks - disk.f_bfree) * disk.f_frsize - room_of(folder / "work" / "checkpoints")
    room = others + 300_000 + 7 * size // 2  # for three of them, and never for a fourth beside
    subprocess.run(["mount", "-o", f"remount,size={room}", small_disk], check=True)
    ended = Ended(sft_project, run, small_disk)
    assert [event["values"]["class"] for event in ended.events("remedy")] == ["disk-full"]
    assert len(ended.begins()) == 2
    assert ended.begins()[1] >= 8


def room_of(folder):
    """What the files of a folder take, in bytes of whole pages."""
    sizes = [os.lstat(path).st_size for path in folder.rglob("*") if not path.is_dir()]
    return sum(-(-size // 4096) * 4096 for size in sizes)
