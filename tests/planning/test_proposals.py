"""What is proposed where nothing fits: typed as it is printed, each proposal is planned, and the gate passes it."""

import re

import pytest
from planning.test_what_fits import MODELS
from testbed.profiles import profile

from launcher.config.resolve import cards
from launcher.planning.assembly import plan
from launcher.planning.gate import check
from launcher.planning.precision.ladder import ASKED_FOR
from launcher.planning.precision.memory import gb_words
from launcher.values.host import LOCAL
from launcher.values.job import Job
from launcher.values.plan import ScriptUse
from launcher.values.precision import Platform
from launcher.values.profile import Profile

TAKES = ("base", "checkpointing", "precision", "split")
MAC = (
    profile("mps").model_copy(update={"memory_gb": 36}),
    Platform(macos="15.3", apple_chip="Apple M3 Max"),
)
MAXWELL = Profile(name="m40", title="M40 24 GB", kind="cuda", capability="5.2", memory_gb=24)


def planned(card, size, asked="auto", *, platform=None, takes=TAKES, teacher=None, **keys):
    keys["settings"] = {"max_length": 1024, "optim": "auto", "lora_rank": 16, **keys.get("settings", {})}
    job = Job(
        name="x", command=("python", "a.py"), model="org/m", teacher="org/t" if teacher else None, **keys
    )
    about = {"model": MODELS[size], "teacher": MODELS.get(teacher), "platform": platform}
    return plan(card, LOCAL, job, asked, script=ScriptUse(takes), **about)


def too_large(one):
    return [found for found in check(one, None, cards=cards()) if found.code == "model-too-large"]


def proposals(card, size, asked="auto", **keys):
    """The lines of the refusal, after each was typed; one in words alone has nothing to type."""
    (found,) = too_large(planned(card, size, asked, **keys))
    lines = found.mend.split("\n  ")
    assert 1 <= len(lines) <= 4
    for line in lines:
        assert not too_large(typed(line, card, size, asked, **keys)) or "   --" not in line, line
    return lines


def typed(line, card, size, asked, **keys):
    keys["settings"] = dict(keys.get("settings", {}))
    for option, value in re.findall(r"--(set|profile|precision) (\S+)", line):
        if option == "profile":
            card = profile(value)
        elif option == "precision":
            asked = value
        else:
            name, _, text = value.partition("=")
            of = keys["settings"] if name.startswith("settings.") else keys
            of[name.removeprefix("settings.")] = (
                True if text == "true" else int(text) if text.isdigit() else text
            )
    return planned(card, size, asked, **keys)


@pytest.mark.parametrize(
    ("card", "platform", "method"),
    [(*MAC, "lora"), (*MAC, "full"), (MAXWELL, None, "full"), (MAXWELL, None, "lora")],
)
def test_where_four_bits_cannot_be_they_are_not_proposed(card, platform, method):
    """A Mac without a torch that is known, and a Maxwell: the refusal is of what was asked for, not of QLoRA."""
    for line in proposals(card, "14B", platform=platform, method=method):
        assert "qlora" not in line or "--profile" in line


def test_a_macs_own_software_is_counted_with():
    """With a macOS and a torch that can, four bits are proposed."""
    known = MAC[1].model_copy(update={"torch": "2.13.0"})
    assert "--set method=qlora" in " ".join(proposals(MAC[0], "14B", platform=known, method="lora"))


def test_checkpointing_that_was_set_to_false_is_the_first_cure_or_part_of_one():
    """Nothing else is computed with it on."""
    card = profile("rtx_4090_24gb")
    alone = proposals(card, "8B", method="lora", checkpointing=False, settings={"max_length": 2048})
    assert alone[0] == "recompute activations   --set checkpointing=true"
    pairs = proposals(card, "14B", method="lora", checkpointing=False)
    assert any("--set checkpointing=true --set method=qlora" in line for line in pairs)
    takes = ("base", "precision", "split")
    own = {"gradient_checkpointing": False, "max_length": 2048}
    lines = proposals(card, "8B", takes=takes, method="lora", settings=own)
    assert lines[0].endswith("--set settings.gradient_checkpointing=true")


def test_a_precision_that_was_asked_for_is_kept_or_its_change_is_named():
    """The refusal has its parts; bf16 proposes no card that emulates it."""
    card = profile("rtx_3090_24gb")
    asked = planned(card, "14B", "fp32", method="lora")
    assert asked.ladder[0].why.startswith(ASKED_FOR)
    (found,) = too_large(asked)
    assert "in fp32 with tf32" in found.message
    assert "weights 59." in found.message
    proposals(card, "14B", "fp32", method="lora")
    assert proposals(card, "8B", "fp32", method="lora")[0].endswith("--precision auto")
    for line in proposals(card, "14B", "bf16", method="lora"):
        for name in re.findall(r"--profile (\S+)", line):
            assert profile(name).has_bf16


def test_where_one_change_does_not_do_two_are_one_line():
    """70 billion parameters under LoRA fit on no usual card; their 4 bits fit on 80 GB."""
    lines = proposals(profile("rtx_4090_24gb"), "70B", method="lora")
    assert any("--set method=qlora --profile a100_80gb     A100 80 GB" in line for line in lines)
    assert all("on a host that has one" in line for line in lines)


def test_an_optimizer_is_proposed_where_the_script_takes_its_name():
    """Trainer's names; a distillation has a loop of its own, and a job without the setting has none to change."""
    card = profile("v100_16gb")
    full = proposals(card, "1B", method="full")
    assert any(line.endswith("--set settings.optim=adafactor") for line in full)
    taught = proposals(card, "1B", method="full", teacher="1B")
    assert not any("adafactor" in line for line in taught)


def test_a_wide_adapter_is_narrowed():
    """Where its rank is what does not fit."""
    lines = proposals(profile("rtx_4090_24gb"), "8B", method="lora", settings={"lora_rank": 512})
    assert any("--set settings.lora_rank=" in line for line in lines)


def test_an_own_script_is_not_promised_an_adapter():
    """The method is what the plan counts with; the script may train all weights all the same."""
    lines = proposals(profile("rtx_4090_24gb"), "3B", takes=(), method="full")
    assert all("if the script trains one" in line for line in lines if "method=" in line)
    assert any("method=" in line for line in lines)


def test_a_teacher_is_named_where_it_is_counted():
    """And a smaller one proposed, where it is the largest part."""
    (found,) = too_large(planned(profile("rtx_4090_24gb"), "1B", method="full", teacher="8B"))
    assert "of which the teacher 16.1" in found.message
    assert found.mend.startswith("a smaller teacher\n")


@pytest.mark.parametrize(("size", "words"), [(23.74e9, "23.7"), (999.96e9, "1000"), (1133e9, "1133")])
def test_bytes_are_written_in_one_format(size, words):
    """Without an exponent."""
    assert gb_words(size) == words


def test_a_method_that_cannot_load_the_base_is_not_proposed(monkeypatch):
    """The gate would refuse it: bitsandbytes does not quantize what was saved quantized by another."""
    saved = MODELS["8B"].model_copy(update={"quant_method": "gptq"})
    monkeypatch.setitem(MODELS, "8B", saved)
    small = profile("rtx_3060_12gb")
    assert not [line for line in proposals(small, "8B", method="full") if "qlora" in line]
