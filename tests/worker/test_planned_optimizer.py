"""The plan's AdamW: the same rule on both sides, the form that is used, and that a checkpoint does not change it."""

from types import SimpleNamespace

import pytest

from launcher.config.lookup import Lookup
from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.planning.precision.memory import Training, needed_gb
from launcher.planning.precision.workload import read_workload
from launcher.values.model import read_model

pytestmark = pytest.mark.training

MODEL = read_model(
    {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100}
)  # fmt: skip
CARD = {"device": "cuda", "capability": "8.0", "base_dtype": "float32"}


def rungs():
    """Every precision that a plan can have on a profile of ours."""
    for card in Lookup().profiles.values():
        for method in ("lora", "full"):
            inputs = LadderInputs(card, method)
            modes = {"auto", *(one.mode for one in ladder(inputs).excluded if one.on_request)}
            yield from (rung for mode in sorted(modes) for rung in ladder(inputs, mode).rungs)


def test_the_plan_counts_the_memory_of_the_optimizer_that_the_worker_takes(torch, worker, run_of):
    """On every rung of every card: the rule stands in two packages, which import nothing of each other."""
    seen = set()
    for rung in rungs():
        worker.values._read_knobs.cache_clear()
        run_of(precision=rung.model_dump(), rehearsed=True)
        optim = worker.training_arguments()["optim"]
        fused = worker.optimizer_arguments()["fused"]
        assert (optim, fused) == (("adamw_torch", None), ("adamw_torch_fused", True))[rung.fuses_adamw]
        peaks = [
            needed_gb(
                Training(MODEL, "full", read_workload({"optim": name, "max_length": 1}, None, MODEL)), rung
            )
            for name in ("auto", optim)
        ]
        assert peaks[0] == peaks[1], rung
        seen.add((rung.device, rung.mode, optim))
    assert {one for one in seen if one[0] == "cuda"} == {
        ("cuda", "bf16", "adamw_torch_fused"),
        ("cuda", "fp32", "adamw_torch_fused"),
        ("cuda", "fp16", "adamw_torch"),
    }
    assert {optim for device, _, optim in seen if device != "cuda"} == {"adamw_torch"}


def test_what_the_script_says_of_the_optimizer_wins(torch, worker, run_of):
    """Its own scaler too: with fp16 of the script's own a fused AdamW would hide the steps that it skips."""
    run_of("bf16", CARD)
    assert worker.optimizer_arguments(fused=None, lr=1.0) == {"eps": 1e-8, "fused": None, "lr": 1.0}
    assert worker.training_arguments(optim="sgd")["optim"] == "sgd"
    assert worker.training_arguments(fp16=True)["optim"] == "adamw_torch"


def test_outside_a_run_it_is_torchs_own(torch, worker):
    """A script that runs by hand gets AdamW as torch has it."""
    assert worker.optimizer_arguments() == {"eps": 1e-8, "fused": None}


def by_trainer(worker, optimizer):
    """Begin a Trainer's training, which has read its checkpoint before."""
    state = SimpleNamespace(global_step=0, max_steps=1, is_world_process_zero=False)
    arguments = SimpleNamespace(fp16=False, bf16=False)
    worker.trainer_callback().on_train_begin(arguments, state, None, optimizer=optimizer)


@pytest.mark.parametrize("give_back", [lambda worker, one: worker.restore_form(one), by_trainer])
@pytest.mark.parametrize("fused", [True, None])
def test_a_checkpoint_of_the_other_form_changes_neither_form_nor_training(torch, worker, fused, give_back):
    """torch takes the form from the checkpoint. The steps that follow are those of a training in one form."""

    def train(optimizer, weight, steps):
        for step in range(steps):
            weight.grad = torch.sin(weight.detach() + step)
            optimizer.step()

    def made(form, weight):
        return torch.optim.AdamW([weight], lr=0.1, fused=form)

    other = None if fused else True
    expected, weight = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    before = made(other, weight)
    train(before, weight, 3)
    train(made(fused, expected), expected, 3)
    after = made(fused, weight)
    after.load_state_dict(before.state_dict())
    assert after.param_groups[0]["fused"] is other  # what is to be mended
    give_back(worker, after)
    assert after.param_groups[0]["fused"] is fused
    assert after.state[weight]["step"] == 3
    torch.testing.assert_close(weight, expected)


class Count:
    """A count of steps that notes where it is moved to."""

    place = None

    def to(self, place):
        """Move."""
        self.place = str(place)
        return self


@pytest.mark.parametrize(("fused", "place"), [(None, "cpu"), (True, "meta")])
def test_the_count_of_steps_is_where_its_form_needs_it(torch, worker, fused, place):
    """Left on the device, an unfused AdamW would ask it for the count of each weight, at every step."""
    weight = torch.nn.Parameter(torch.ones(3, device="meta"))
    optimizer = torch.optim.AdamW([weight], fused=fused)
    optimizer.state[weight]["step"] = count = Count()
    worker.restore_form(optimizer)
    assert count.place == place


def test_other_optimizers_stay_as_they_are(torch, worker):
    """They have no such forms."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Rprop([weight])
    groups = [dict(group) for group in optimizer.param_groups]
    worker.restore_form(optimizer)
    assert [dict(group) for group in optimizer.param_groups] == groups
