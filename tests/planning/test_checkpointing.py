"""Activation checkpointing is the planner's choice, and what cannot fit is refused with what would."""

import pytest

from launcher.config import resolve
from launcher.config.lookup import Lookup
from launcher.planning.assembly import changed, job_of, ladder_inputs, plan
from launcher.planning.gate import check
from launcher.planning.precision.ladder import MEASURED
from launcher.planning.verification_plan import verification
from launcher.values.facts import Measured, PrecisionEvidence
from launcher.values.host import LOCAL
from launcher.values.job import Job
from launcher.values.model import read_model
from launcher.values.plan import ScriptUse
from launcher.values.profile import Profile

TAKES = ("base", "checkpointing", "precision", "split")
SHAPES = {
    "Llama-3-8B": (4096, 14336, 32, 32, 8, 128256),
    "Qwen2.5-7B": (3584, 18944, 28, 28, 4, 152064),
    "Mistral-7B": (4096, 14336, 32, 32, 8, 32000),
}
"""Hidden and inner width, layers, heads, their groups, vocabulary: of the public config.json of each."""
CARDS = {
    "A10, L4": Profile(name="a", title="A 24 GB", kind="cuda", capability="8.6", memory_gb=24, memory_mib=23028),
    "RTX 4090": Profile(name="b", title="B 24 GB", kind="cuda", capability="8.9", memory_gb=24, memory_mib=24564),
    "TITAN RTX": Lookup().profile("titan_rtx"),
}  # fmt: skip


def model(name="Llama-3-8B"):
    hidden, inner, layers, heads, groups, vocabulary = SHAPES[name]
    return read_model(
        {"model_type": "llama", "dtype": "bfloat16", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
         "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": vocabulary, "tie_word_embeddings": False}
    )  # fmt: skip


def job(method="lora", **more):
    settings = {"max_length": 1024, "optim": "auto", **more.pop("settings", {})}
    return Job(name="x", command=("python", "a.py"), model="org/m", method=method, settings=settings, **more)


def planned(asked, card="RTX 4090", of="Llama-3-8B", takes=TAKES, **more):
    return plan(CARDS[card], LOCAL, asked, model=model(of), script=ScriptUse(takes), **more)


def said(one):
    """What the gate says of memory."""
    return [found for found in check(one, None, cards=resolve.cards()) if found.code == "model-too-large"]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name", SHAPES)
def test_adapters_of_seven_and_eight_billion_fit_on_24_gb_with_checkpointing(name, card):
    """Where nothing fits without; nothing is refused. Smaller models train as before."""
    one = planned(job(), card, name)
    assert one.checkpointing or (card != "A10, L4" and name == "Mistral-7B")
    assert "nothing fits" not in one.ladder[0].why
    assert said(one) == []
    small = plan(
        CARDS[card], LOCAL, job(), model=read_model({**SMALL, "dtype": "bfloat16"}), script=ScriptUse(TAKES)
    )
    assert not small.checkpointing
    assert "checkpointing" not in small.model_dump(mode="json")


SMALL = {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_hidden_layers": 24,
         "num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 151936}  # fmt: skip


def test_a_person_decides_and_a_script_that_does_not_take_it_is_not_counted_on():
    """By the job's key, or by the settings that scripts have for it."""
    assert not planned(job(checkpointing=False)).checkpointing
    assert planned(job(checkpointing=True), of="Mistral-7B").checkpointing
    assert planned(job(settings={"gradient_checkpointing": True})).checkpointing
    assert not planned(job(settings={"activation_checkpointing": False})).checkpointing
    own = ("precision", "split")
    assert not planned(job(checkpointing=True), takes=own).checkpointing
    assert planned(job(settings={"gradient_checkpointing": True}), takes=own).checkpointing
    assert said(planned(job(), takes=own))[0].level == "note"


def test_a_larger_micro_batch_fits_with_it():
    """It is what the split is made for, also in a run that goes on with it."""
    asked = job(batch={"global": 64})
    big = Lookup().profile("a100_80gb")
    plain = plan(big, LOCAL, asked, model=model(), script=ScriptUse(TAKES))
    again = plan(
        big, LOCAL, asked.model_copy(update={"checkpointing": True}), model=model(), script=ScriptUse(TAKES)
    )
    assert not plain.checkpointing
    assert again.split.micro_batch > plain.split.micro_batch
    smaller = changed(
        again, job_of(again).model_copy(update={"checkpointing": False}), ["checkpointing"], "local"
    )
    assert not smaller.checkpointing
    assert smaller.split == plain.split
    assert job_of(again).checkpointing is True
    assert job_of(smaller).checkpointing == "auto"


def test_full_fine_tuning_that_cannot_fit_is_refused_with_what_would():
    """The parts of its memory, and what to type: an adapter, a card that ships."""
    (found,) = said(planned(job("full")))
    assert found.level == "refuse"
    for word in (
        "8.0 B parameters",
        "weights 16.1",
        "gradients 16.1",
        "optimizer",
        "activations",
        "a plan uses 23.7 GB",
    ):
        assert word in found.message  # fmt: skip
    assert "--set method=lora" in found.mend
    assert "--profile a100_80gb" in found.mend


def test_an_adapter_that_cannot_fit_is_refused_with_shorter_examples_checkpointing_or_a_card():
    """What was ruled out by hand is proposed too."""
    (found,) = said(planned(job(settings={"max_length": 8192})))
    assert found.level == "refuse"
    assert "--set settings.max_length=2048" in found.mend
    (found,) = said(planned(job(checkpointing=False)))
    assert "--set checkpointing=true" in found.mend
    assert "a larger card, on a host that has one   --profile " in found.mend


@pytest.mark.parametrize(
    ("method", "takes", "level"),
    [
        ("full", TAKES, "refuse"),
        ("full", ("base", "precision"), "refuse"),
        ("full", ("precision",), "note"),  # it quantizes the base itself: `full` is only what no one has said
        ("full", (), "note"),
        ("lora", ("checkpointing", "precision", "split"), "note"),  # it quantizes the base itself
        ("lora", (), "note"),
    ],
)
def test_only_what_the_plan_decides_is_refused(method, takes, level):
    """Else the script may load the model in fewer bits."""
    asked = job(method, settings={"max_length": 16384})
    (found,) = said(planned(asked, takes=takes))
    assert found.level == level


def test_what_has_not_been_said_of_examples_is_not_refused():
    """Without `max_length` they may be shorter than assumed."""
    asked = job(checkpointing=False)
    (found,) = said(planned(asked.model_copy(update={"settings": {}})))
    assert found.level == "note"


def test_what_was_measured_wins():
    """It trained there, whatever the estimate says; and `launch verify` is not refused."""
    asked = job(checkpointing=False)
    one = planned(asked)
    assert [found.level for found in said(one)] == ["refuse"]
    (found,) = said(verification(one, asked))
    assert found.level == "note"
    digest = verification(one, asked).verification.workload
    rung = one.ladder[0].digest
    record = PrecisionEvidence(
        card="b", method="lora", job="x", precision=rung, run="r", time=1.0,
        measured=Measured(workload=digest, micro_batch=1, fits=1),
    )  # fmt: skip
    assert {*ladder_inputs(CARDS["RTX 4090"], asked, model(), None, (record,)).measured} == {rung}
    after = planned(asked, evidence=(record,))
    assert after.ladder[0].why.startswith(MEASURED)
    assert said(after) == []
    assert not planned(job(), evidence=(record,)).checkpointing, "it was measured without"
