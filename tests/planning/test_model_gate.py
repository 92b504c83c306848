"""Notes on a model whose size no card's memory judges."""

import pytest
from planning.test_ladder import LLAMA_7B, QWEN_05B
from planning.test_plan import facts
from testbed.profiles import profile

from launcher.planning.assembly import plan
from launcher.planning.gate import check
from launcher.planning.model_size_findings import unknown_model
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.model import read_model

THERE = Host(name="there", address="there")


def planned(card, model, config=None, method="full"):
    job = Job(name="x", command=("a",), model=model, method=method)
    return plan(profile(card), THERE, job, model=read_model(config) if config else None)


@pytest.mark.parametrize(
    ("model", "config", "count"),
    [
        ("meta-llama/Llama-3.1-70B", None, 1),
        ("org/small", QWEN_05B, 0),
        ("demo", None, 0),
        ("host:/m", None, 0),
    ],
)
def test_a_model_of_the_hub_that_is_not_cached_is_noted_with_the_command_that_makes_it_known(
    model, config, count
):
    """A word that only the script understands is no model of the hub."""
    found = unknown_model(planned("rtx_4090_24gb", model, config))
    assert [(one.level, one.code) for one in found] == [("note", "model-unknown")] * count
    assert all(f"hf download {model} config.json" in one.mend for one in found)
    assert all("micro-batch" in one.message for one in found)


@pytest.mark.parametrize(("config", "memory_gb", "is_noted"), [
    (LLAMA_7B, 32, True), (LLAMA_7B, 512, False), (LLAMA_7B, None, False), (QWEN_05B, 32, False),
])  # fmt: skip
def test_a_training_beyond_a_hosts_memory_is_noted_on_its_cpu(config, memory_gb, is_noted):
    """With what would fit there."""
    found = check(planned("cpu", "org/model", config), facts(memory_gb=memory_gb))
    notes = [one for one in found if one.code == "model-too-large"]
    assert [one.level for one in notes] == ["note"] * is_noted
    assert all("there has 32 GB of memory" in one.message and "--set method=" in one.mend for one in notes)
