"""A full fine-tune that fits no single card is divided among several, if the script can do that."""

import pytest

from launcher.config.lookup import Lookup
from launcher.planning.assembly import changed, job_of, plan
from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.planning.precision.memory import Training, estimate
from launcher.planning.precision.workload import Workload
from launcher.values.host import LOCAL
from launcher.values.job import BatchSize, Job
from launcher.values.model import read_model
from launcher.values.plan import ScriptUse
from launcher.values.profile import Profile

MODEL = read_model(
    {"model_type": "llama", "dtype": "bfloat16", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
     "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False}
)  # fmt: skip
"""The shape of Llama-3-8B, from its public config.json."""
USE = ScriptUse(("base", "checkpointing", "precision", "split"))


def planned(cards, gigabytes=80, **more):
    card = Profile(
        name="h", title="H", kind="cuda", capability="9.0", memory_gb=gigabytes, memory_mib=gigabytes * 1019, count=cards
    )  # fmt: skip
    about = {"method": "full", "sharding": True, "settings": {"optim": "auto"}, **more}
    asked = Job(name="x", command=("python", "a.py"), model="org/m", batch=BatchSize(global_size=64), **about)
    return plan(card, LOCAL, asked, model=MODEL, script=USE)


@pytest.mark.parametrize(
    ("made", "is_divided", "mode"),
    [
        pytest.param(planned(4), True, "bf16", id="on four cards"),
        pytest.param(planned(1), False, "bf16-weights", id="one card: nothing to divide among"),
        pytest.param(planned(4, sharding=False), False, "bf16-weights", id="a script that cannot"),
        pytest.param(planned(4, gigabytes=200), False, "bf16", id="cards that hold it whole"),
        pytest.param(planned(4, method="lora"), False, "bf16", id="an adapter"),
    ],
)
def test_it_is_divided_only_if_float32_weights_fit_no_other_way(made, is_divided, mode):
    assert (made.sharding, made.ladder[0].mode) == (is_divided, mode)
    assert ("sharding" in made.model_dump()) == is_divided  # else older clients can read the plan


def test_a_plan_keeps_it():
    made = planned(4)
    assert job_of(made).sharding
    assert changed(made, job_of(made).model_copy(update={"steps": 7}), ["steps"], "local").sharding


def test_a_card_has_a_share_of_the_states_and_what_is_in_use_whole():
    """Weights, gradients and AdamW's moments: 16 bytes a parameter, over all ranks; activations as they were."""
    card = Lookup().profile("h200")
    form = ladder(LadderInputs(card, "full", None), "fp32").rungs[0]
    share, whole = (
        estimate(Training(MODEL, "full", Workload(ranks=ranks, is_sharded=ranks > 1)), form, 64)
        for ranks in (8, 1)
    )
    assert share.states == pytest.approx(whole.states / 8)
    layers = MODEL.parameters - MODEL.embeddings
    assert share.activations - whole.activations == 2 * 4 * (MODEL.embeddings + 2 * layers / MODEL.layers)
