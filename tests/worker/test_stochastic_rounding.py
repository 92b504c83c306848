"""bf16 weights: small updates count, all ranks and a resumed run round alike, and an optimizer that cannot is refused."""

import io
import sys

import pytest

pytestmark = pytest.mark.training

CARD = {"device": "cuda", "capability": "8.0"}
SIZE = 4096
RATE = 1e-4  # of a weight of 1.0, whose neighbours in bf16 are 3.9e-3 and 7.8e-3 away


@pytest.fixture
def planned(torch, worker, run_of):
    """Be in a run whose plan has bf16 weights, and has a card for them."""
    run_of("bf16-weights")


def ones(torch, rows=16):
    """A matrix of ones in bf16, large enough for moments of 8 bits."""
    return torch.nn.Parameter(torch.ones(rows, SIZE // rows, dtype=torch.bfloat16))


def train(optimizer, weight, steps, start=0):
    """Step down with a gradient that is about one everywhere."""
    for step in range(start, start + steps):
        weight.grad = weight.new_full(weight.shape, 1.0 + step % 2 / 8)
        optimizer.step()


def test_updates_too_small_for_bf16_count_on_average(torch, worker, planned):
    """A plain AdamW over the same weights never moves one; rounded stochastically they go where float32 ones would."""
    plain, weight = ones(torch), ones(torch)
    train(torch.optim.AdamW([plain], lr=RATE, weight_decay=0.0), plain, 20)
    train(worker.adamw([weight], lr=RATE, weight_decay=0.0), weight, 20)
    assert bool((plain == 1).all())
    moved = 1 - weight.float().mean().item()
    assert moved == pytest.approx(20 * RATE, rel=0.1)  # three times the spread of the mean of so many weights


def test_ranks_round_alike_whatever_their_random_numbers_are_and_those_do_not_change(torch, worker, planned):
    """Ranks that rounded apart would train different models: their dropout may have drawn another number of times."""
    weights = ones(torch), ones(torch)
    for weight, drawn in zip(weights, (3, 5), strict=True):
        optimizer = worker.adamw([weight], lr=RATE)
        for step in range(3):
            torch.manual_seed(drawn)
            torch.rand(drawn)
            expected = torch.get_rng_state()
            train(optimizer, weight, 1, step)
            assert torch.equal(torch.get_rng_state(), expected)
    assert torch.equal(*weights)
    assert bool((weights[0] != 1).any())


def test_the_moments_of_a_norm_fall_when_its_gradients_do(torch, worker, planned):
    """torchao keeps so few numbers in the weights' dtype, and in bf16 a mean of squares never falls."""
    norm = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = worker.adamw([norm], lr=RATE)
    for gradient in (1.0, *[0.0] * 20):
        norm.grad = torch.full_like(norm, gradient)
        optimizer.step()
    assert optimizer.state[norm]["exp_avg_sq"].mean().item() == pytest.approx(0.001 * 0.999**20, rel=1e-3)
    again = worker.adamw([norm], lr=RATE)
    again.load_state_dict(optimizer.state_dict())  # torch would give them the weights' dtype
    worker.restore_form(again)
    assert torch.equal(again.state[norm]["exp_avg_sq"], optimizer.state[norm]["exp_avg_sq"])


def test_each_step_rounds_anew(torch, worker, planned):
    """With the same numbers at each step a weight would be rounded up for ever, or down."""
    weight = ones(torch)
    optimizer, moved = worker.adamw([weight], lr=RATE), []
    for step in range(2):
        before = weight.detach().clone()
        train(optimizer, weight, 1, step)
        moved.append(before != weight)
    assert not torch.equal(*moved)


def test_a_resumed_training_rounds_as_one_that_was_never_interrupted(torch, worker, planned):
    """Also if the process that resumes has drawn other random numbers before."""
    whole, weight = ones(torch), ones(torch)
    train(worker.adamw([whole], lr=RATE), whole, 6)
    before = worker.adamw([weight], lr=RATE)
    train(before, weight, 3)
    file = io.BytesIO()
    torch.save([before.state_dict(), weight], file)
    torch.manual_seed(11)
    file.seek(0)
    state, saved = torch.load(file, weights_only=True)
    after = worker.adamw([saved], lr=RATE)
    after.load_state_dict(state)
    worker.restore_form(after)
    train(after, saved, 3, 3)
    assert torch.equal(saved, whole)


def test_trainer_gets_it_by_keywords_and_the_callback_makes_it_round_alike(torch, worker, planned):
    """A script that names an optimizer of its own keeps that, and the guard then ends it."""
    given = worker.training_arguments()
    assert (given["optim"], given["optim_args"]) == ("adamw_torch_8bit", "bf16_stochastic_round=True")
    assert (given["bf16"], given["fp16"]) == (False, False)
    assert worker.training_arguments(optim="sgd")["optim"] == "sgd"


@pytest.mark.parametrize("keywords", [{"fused": None}, {}])
def test_an_optimizer_that_rounds_to_the_nearest_is_refused_before_its_first_step(
    torch, worker, planned, keywords
):
    """It would train nothing, and look as if it did."""
    model = worker.prepare(torch.nn.Linear(8, 8, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match=r"worker\.adamw"):
        worker.optimizer_arguments(**keywords)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(1, 8, dtype=torch.bfloat16)).sum().backward()
    before = model.weight.detach().clone()
    with pytest.raises(RuntimeError, match="loses small updates"):
        optimizer.step()
    assert torch.equal(model.weight, before)


def test_without_torchao_it_is_said_before_the_training(torch, worker, planned, monkeypatch):
    """The message names the package."""
    monkeypatch.setitem(sys.modules, "torchao", None)
    for take in (worker.training_arguments, lambda: worker.adamw([ones(torch)])):
        with pytest.raises(RuntimeError, match="pip install torchao"):
            take()


def test_elsewhere_it_is_torchs_adamw(torch, worker, run_of):
    """With the plan's eps and form."""
    run_of("bf16", CARD | {"base_dtype": "float32"})
    optimizer = worker.adamw([ones(torch)], lr=0.5)
    assert type(optimizer) is torch.optim.AdamW
    assert (optimizer.defaults["lr"], optimizer.defaults["fused"]) == (0.5, True)
