"""The guard: what ends a training, within how many steps and as what, and what does not, over real trainings."""

import copy
import itertools
import math

import pytest
from testbed.tables import mostly_long

pytestmark = pytest.mark.training

NAN = float("nan")


def from_step(first: int, change, until: float = math.inf):
    """Change the loss of the training steps from `first` to before `until`."""
    return lambda loss, step: change(loss) if first <= step < until else loss


def overflow(loss):
    """Keep the loss as it is, and make its gradient overflow."""
    return loss + (loss - loss.detach()) * 1e38


CARD = {"device": "cuda", "capability": "8.0"}
"""A card on which the plan's AdamW is fused where there is no scaler."""
POISONED_TRAINERS = {
    # name: (mode, of the precision, poison, Trainer's keywords, class, first bad step, ends at)
    "a NaN loss": ("fp32", {}, from_step(6, lambda loss: loss * NAN), {}, "nan-divergence", 6, 6),
    "a NaN loss, scaled": ("fp16", {}, from_step(6, lambda loss: loss * NAN), {}, "nan-divergence", 6, 7),
    "an infinite loss in bf16": (
        "bf16",
        {},
        from_step(6, lambda loss: loss * math.inf),
        {},
        "nan-divergence",
        6,
        6,
    ),
    "overflow from a step on": ("fp16", {}, from_step(6, overflow), {}, "nan-divergence", 6, 9),
    "overflow from the start": ("fp16", {}, from_step(1, overflow), {}, "nan-divergence", 11, 14),
    "overflow hidden by the fused optimizer": (
        "fp16",
        {},
        from_step(6, overflow),
        {"optim": "adamw_torch_fused"},
        "nan-divergence",
        6,
        9,
    ),
    "a NaN loss under the planned fused optimizer": (
        "bf16",
        CARD,
        from_step(6, lambda loss: loss * NAN),
        {},
        "nan-divergence",
        6,
        6,
    ),
    "a fused optimizer that moves too far": (
        "bf16",
        CARD,
        None,
        {"learning_rate": 30.0},
        "nan-divergence",
        1,
        range(3, 6),  # by the processor's way to multiply bf16
    ),
    "a fused optimizer without gradients": (
        "bf16",
        CARD,
        from_step(6, lambda loss: loss * 0),
        {},
        "not-learning",
        6,
        9,
    ),
    "a loss that explodes": (
        "fp32",
        {},
        from_step(8, lambda loss: loss + 100),
        {},
        "nan-divergence",
        7,
        11,
    ),
    "an absurd learning rate": ("fp32", {}, None, {"learning_rate": 30.0}, "nan-divergence", 1, 4),
    "a loss of zero": ("fp32", {}, from_step(6, lambda loss: loss * 0), {}, "not-learning", 6, 9),
}


@mostly_long("name", POISONED_TRAINERS, ci=(0, 1, 3, 5, 7, 8))
def test_a_poisoned_trainer_ends_within_five_steps(worker, run_of, agent, llama, train, name):
    """Each poison ends the training with its class and its first bad step, and the agent gets the same report."""
    mode, changes, poison, keywords, kind, since, step = POISONED_TRAINERS[name]
    run_of(mode, {"base_dtype": "float32", **changes})
    model = worker.prepare(llama(poison=poison))
    with pytest.raises(worker.Tripped, match=kind) as tripped:
        train(model, max_steps=40, **keywords)
    event = agent.first("trip")
    values = event["values"]
    assert (values["class"], values["since"]) == (kind, since)
    assert event["step"] in (step if isinstance(step, range) else [step])
    assert values["why"] == str(tripped.value)
    assert "loss_first" in values
    with pytest.raises(worker.Tripped):
        worker.done(event["step"])


def adam(torch, model, worker, **own):
    """Build the plan's optimizer over what is trainable."""
    settings = {"lr": 1e-3, "eps": worker.knobs().peek.precision.adam_eps, **own}
    return torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], **settings)


def loop(worker, model, optimizer, rows, steps, *, zero_first=False, see=None):
    """Train in plain torch, with the worker's pair of autocast and scaler."""
    scaler = worker.scaler()
    model.train()
    batches = itertools.cycle(rows)
    for step in range(1, steps + 1):
        if zero_first:
            optimizer.zero_grad()
        with worker.autocast():
            row = next(batches)
            loss = model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if not zero_first:
            optimizer.zero_grad()
        if see is not None:
            see(step)
    return scaler


def planned(torch, model, worker):
    """Build AdamW as the plan has it."""
    trained = [one for one in model.parameters() if one.requires_grad]
    return torch.optim.AdamW(trained, **worker.optimizer_arguments(lr=1e-3))


@pytest.mark.parametrize("mode", ["bf16", pytest.param("fp32", marks=pytest.mark.long)])
def test_a_healthy_training_with_the_planned_fused_optimizer_raises_nothing(
    torch, worker, run_of, agent, llama, rows, train, mode
):
    """It learns as well as with the unfused one, by a Trainer and by a loop, and is proven."""
    losses = {}
    for optim in ("adamw_torch", "adamw_torch_fused"):
        run_of(mode, {"base_dtype": "float32", **CARD}, steps=25)
        trainer = train(
            worker.prepare(llama()), max_steps=25, logging_strategy="steps", logging_steps=1, optim=optim
        )
        losses[optim] = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses["adamw_torch_fused"] == pytest.approx(losses["adamw_torch"], rel=1e-3)
    assert train(worker.prepare(llama()), max_steps=2).optimizer.param_groups[0]["fused"] is True
    model = worker.prepare(llama())
    optimizer = planned(torch, model, worker)
    assert optimizer.param_groups[0]["fused"] is True
    loop(worker, model, optimizer, rows, 25)
    worker.done(25)


POISONED_LOOPS = {
    # name: (mode, poison, the optimizer's settings, class, first bad step, ends at)
    "a NaN loss": ("fp32", from_step(6, lambda loss: loss * NAN), {}, "nan-divergence", 6, 6),
    "a NaN loss, scaled": ("fp16", from_step(6, lambda loss: loss * NAN), {}, "nan-divergence", 6, 7),
    "overflow from a step on": ("fp16", from_step(6, overflow), {}, "nan-divergence", 6, 9),
    "overflow hidden by the fused optimizer": (
        "fp16",
        from_step(6, overflow),
        {"fused": True},
        "nan-divergence",
        6,
        9,
    ),
    "a NaN loss, fused": (
        "bf16",
        from_step(6, lambda loss: loss * NAN),
        {"fused": True},
        "nan-divergence",
        6,
        6,
    ),
    "an absurd learning rate": ("fp32", None, {"lr": 30.0}, "nan-divergence", 1, 4),
    "an absurd learning rate, fused": ("fp32", None, {"lr": 30.0, "fused": True}, "nan-divergence", 1, 4),
    "a loss of zero": ("fp32", from_step(6, lambda loss: loss * 0), {}, "not-learning", 6, 9),
}


@pytest.mark.parametrize(
    "zero_first",
    [
        pytest.param(True, id="cleared before", marks=pytest.mark.long),
        pytest.param(False, id="cleared after"),
    ],
)
@pytest.mark.parametrize("name", POISONED_LOOPS)
def test_a_poisoned_loop_ends_within_five_steps(torch, worker, run_of, agent, llama, rows, name, zero_first):
    """A loop in plain torch is judged by the same rules, wherever it clears its gradients."""
    mode, poison, settings, kind, since, step = POISONED_LOOPS[name]
    run_of(mode, {"base_dtype": "float32"}, steps=40)
    model = worker.prepare(llama(poison=poison))
    with pytest.raises(worker.Tripped, match=kind):
        loop(worker, model, adam(torch, model, worker, **settings), rows, 40, zero_first=zero_first)
    event = agent.first("trip")
    assert (event["values"]["class"], event["values"]["since"], event["step"]) == (kind, since, step)


def test_an_optimizer_over_the_wrong_parameters_is_not_learning(
    torch, worker, run_of, agent, llama, rows, train
):
    """Parameters that stand still at a learning rate above zero end a Trainer and a loop at their fifth step."""
    run_of("fp32")
    model = llama()
    optimizer = torch.optim.AdamW(copy.deepcopy(model).parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    with pytest.raises(worker.Tripped, match="not-learning: no trainable weight moves"):
        train(worker.prepare(model), optimizers=(optimizer, schedule))
    event = agent.first("trip")
    assert (event["values"]["since"], event["step"]) == (1, 4)


def test_a_loop_whose_model_stands_still_is_not_learning(torch, worker, run_of, agent, llama, rows):
    """An optimizer that was built before the parameters were replaced trains nobody."""
    run_of("fp32")
    model = llama()
    optimizer = torch.optim.AdamW(copy.deepcopy(model).parameters(), lr=1e-3)
    optimizer.zero_grad = model.zero_grad
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(worker.Tripped, match="not-learning: no trainable weight moves"):
        loop(worker, worker.prepare(model), optimizer, rows, 20)
    assert agent.first("trip")["step"] == 4


def with_a_large_residual(torch, model):
    """Make sums of 8e4 in the residual stream, each of their parts within fp16's 65504."""
    with torch.no_grad():
        model.model.embed_tokens.weight.uniform_(-6e4, 6e4)
        model.model.layers[0].mlp.up_proj.weight.mul_(1e3)
        model.model.layers[0].mlp.down_proj.weight.mul_(1e4)
    return model


def test_a_residual_stream_beyond_fp16_ends_an_fp16_base(torch, worker, run_of, agent, llama, lora, train):
    """What overflows an fp16 base is a divergence from the first step on, and begins again from nothing."""
    run_of("fp16")
    model = with_a_large_residual(torch, llama())
    with pytest.raises(worker.Tripped, match="nan-divergence"):
        train(worker.prepare(lora(model.half())), max_steps=40)
    event = agent.first("trip")
    assert (event["values"]["since"], event["step"]) == (1, 2)


def test_the_same_residual_stream_trains_over_an_fp32_base(torch, worker, run_of, llama, lora, train):
    """Of the same model an fp32 base under fp16 autocast takes no harm."""
    run_of("fp16", {"base_dtype": "float32"})
    model = with_a_large_residual(torch, llama())
    assert train(worker.prepare(lora(model)), max_steps=40).state.global_step == 40


def test_a_frozen_base_that_moves_is_not_learning(torch, worker, run_of, agent, llama, lora, train):
    """What is saved is the adapter alone: beside a base that nobody has it is worth nothing."""
    from transformers import TrainerCallback

    run_of("fp32")
    model = worker.prepare(lora(llama()))

    class Shove(TrainerCallback):
        def on_step_begin(self, *_args, **_kwargs):
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    parameter.data.mul_(1.1)

    with pytest.raises(worker.Tripped, match="the frozen base moves"):
        train(model, callbacks=[Shove()])
    assert agent.first("trip")["values"]["class"] == "not-learning"


def test_a_nan_batch_that_the_scaler_skipped_is_remembered_and_no_trip(
    torch, worker, run_of, agent, llama, train
):
    """One bad batch among good ones costs a step, not the run; the record has it."""
    run_of("fp16", {"base_dtype": "float32"})
    model = worker.prepare(llama(poison=from_step(6, lambda loss: loss * NAN, until=7)))
    train(model, max_steps=30)
    worker.done(30)
    recovered = agent.first("evidence", "recovered")
    assert recovered["values"]["recovered"] == {"since": 6, "steps": 1, "loss": "nan"}
    assert agent.first("evidence", "proof")["values"]["proof"]["skipped"] == 1
    agent.first("done")


def test_done_right_after_a_bad_step_is_no_success(worker, run_of, agent, llama, train):
    """A training that ends on its first bad step would have tripped on the next."""
    run_of("fp16", {"base_dtype": "float32"})
    train(worker.prepare(llama(poison=from_step(12, lambda loss: loss * NAN))), max_steps=12)
    with pytest.raises(worker.Tripped, match="at the end, since step 12"):
        worker.done(12)
    assert agent.first("trip")["values"]["since"] == 12


def test_done_after_skipped_steps_alone_is_no_success(worker, run_of, llama, train):
    """While the scaler settles nothing trips, but a training that ends there has trained nothing."""
    run_of("fp16", {"base_dtype": "float32"})
    train(worker.prepare(llama(poison=from_step(1, overflow))), max_steps=4)
    with pytest.raises(worker.Tripped, match="nan-divergence"):
        worker.done(4)


def test_a_checkpoint_of_a_bad_step_is_not_sealed(worker, run_of, agent, llama, train):
    """Trainer may write it, but it never counts, and the record says why."""
    run_of("fp16", {"base_dtype": "float32"}, save_every_steps=1)
    poison = from_step(4, lambda loss: loss * NAN, until=5)
    folder = train(worker.prepare(llama(poison=poison)), max_steps=6).args.output_dir
    from pathlib import Path

    sealed = sorted(path.parent.name for path in Path(folder).glob("*/manifest.json"))
    assert sealed == ["checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-5", "checkpoint-6"]
    event = agent.first("evidence", "unsealed")
    assert (event["step"], event["values"]["unsealed"]) == (4, "the loss is not finite")


def test_a_checkpoint_with_one_bad_number_is_not_sealed(torch, worker, run_of, agent, llama, rows):
    """Before sealing all trainables are looked at, not a sample."""
    run_of("fp32")
    model = worker.prepare(llama())
    loop(worker, model, adam(torch, model, worker), rows, 3)
    with torch.no_grad():
        model.lm_head.weight[17, 5] = NAN
    worker.save(3, lambda _folder: pytest.fail("nothing is to be written"))
    assert agent.first("evidence", "unsealed")["step"] == 3


def test_steps_carry_the_numbers_of_the_script(torch, worker, run_of, agent, llama, rows):
    """A loop that counts from zero and goes on at step 100 trips with its own numbers."""
    run_of("fp16", {"base_dtype": "float32"})
    model = worker.prepare(llama(poison=from_step(6, lambda loss: loss * NAN)))
    with pytest.raises(worker.Tripped):
        loop(
            worker,
            model,
            adam(torch, model, worker),
            rows,
            20,
            see=lambda step: worker.log(99 + step, loss=1.0),
        )
    assert agent.first("trip")["values"]["since"] == 105


def test_a_loss_that_is_only_logged_counts(torch, worker, run_of, agent):
    """Where no forward pass shows a loss, the script's own word is judged."""
    run_of("fp32")
    model = worker.prepare(torch.nn.Linear(4, 4))
    optimizer = adam(torch, model, worker)

    def work():
        for step in range(1, 20):
            model(torch.randn(2, 4)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            worker.log(step, loss=NAN if step >= 6 else 1.0)

    with pytest.raises(worker.Tripped, match="the loss is not finite"):
        work()
    assert (agent.first("trip")["step"], agent.first("trip")["values"]["since"]) == (7, 6)


def test_weights_that_became_non_finite_end_a_training_without_any_loss(torch, worker, run_of, agent):
    """Weights speak for themselves."""
    run_of("fp32")
    model = worker.prepare(torch.nn.Linear(4, 4))
    optimizer = adam(torch, model, worker)

    def work():
        for step in range(1, 20):
            (model(torch.randn(2, 4)).pow(2).mean() * (NAN if step == 6 else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(worker.Tripped, match="weights became non-finite"):
        work()
    assert agent.first("trip")["step"] == 6


def test_an_accelerate_loop_is_judged_by_its_scaler(torch, worker, run_of, agent, llama, rows):
    """A step that accelerate skips calls no optimizer, and counts all the same."""
    run_of("fp16", {"base_dtype": "float32"}, split=SPLIT)
    accelerator = worker.accelerator()
    model = worker.prepare(llama(poison=from_step(6, overflow)))
    model, optimizer = accelerator.prepare(model, adam(torch, model, worker))
    model.train()

    def work():
        for row in itertools.cycle(rows):
            accelerator.backward(model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss)
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(worker.Tripped, match="nan-divergence"):
        work()
    assert (agent.first("trip")["values"]["since"], agent.first("trip")["step"]) == (6, 9)


SPLIT = {"global_batch": 4, "ranks": 1, "micro_batch": 4, "accumulation": 1}


def test_outside_a_run_the_guard_prints_and_raises(worker, llama, train, capsys, tmp_path, monkeypatch):
    """A script run by hand prints the same reason."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(worker.Tripped):
        train(worker.prepare(llama(poison=from_step(2, lambda loss: loss * NAN))), use_cpu=True)
    assert "nan-divergence: trainable weights became non-finite" in capsys.readouterr().out


def test_a_trainer_without_prepare_is_judged_too(worker, run_of, llama, train):
    """The callback alone is enough."""
    run_of("fp32")
    with pytest.raises(worker.Tripped):
        train(llama(poison=from_step(6, lambda loss: loss * NAN)))


def test_the_loss_that_the_trainer_optimizes_is_judged(worker, run_of, llama, train, monkeypatch):
    """DPO's is not that of the model's output, which may be anything."""
    from transformers import Trainer

    class OwnLoss(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs).logits.float().pow(2).mean() * 7

    run_of("fp32")
    optimized, judged = [], []

    class Noted(OwnLoss):
        def training_step(self, *words, **more):
            optimized.append(super().training_step(*words, **more))
            return optimized[-1]

    from launcher_worker.guard.judge import Judge

    plain = Judge.judge_step

    def noted(self, step, figures):
        judged.append(figures.loss)
        return plain(self, step, figures)

    monkeypatch.setattr(Judge, "judge_step", noted)
    train(llama(poison=from_step(3, lambda loss: loss * NAN)), trainer=Noted)
    assert judged == pytest.approx([float(loss) for loss in optimized])
    assert len(judged) == 12


@pytest.mark.parametrize(("mode", "is_refused"), [("fp32", True), ("bf16", True), ("bf16-weights", False)])
def test_trainables_that_a_trainer_has_cast_are_refused(worker, run_of, llama, train, mode, is_refused):
    """As TRL casts those of a quantized model, after prepare: recorded evidence alone would help nobody."""
    import torch
    from transformers import Trainer

    class Casting(Trainer):
        def __init__(self, model, *words, **more):
            for parameter in model.parameters():
                parameter.data = parameter.data.to(torch.bfloat16)
            super().__init__(model, *words, **more)

    run_of(mode)
    model = worker.prepare(llama(worker.knobs().peek.precision.base_dtype))
    if is_refused:
        with pytest.raises(RuntimeError, match=r"is torch.bfloat16, but the plan trains torch.float32"):
            train(model, trainer=Casting)
    else:
        train(model, trainer=Casting, max_steps=2)


# ---- clean trainings


CLEAN = {
    "fp32": ("fp32", {}, {}),
    "bf16": ("bf16", {}, {}),
    "fp16 over fp16": ("fp16", {}, {}),
    "fp16 over fp32": ("fp16", {"base_dtype": "float32"}, {}),
    "fp16-native": ("fp16-native", {}, {"learning_rate": 2e-4}),
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize(
    "name",
    ["fp16 over fp16"]  # trainings/healthy/lora_modules_to_save.py has the others
    + [
        pytest.param(name, marks=pytest.mark.long)
        for name in ("fp16-native", "fp32", "bf16", "fp16 over fp32")
    ],
)
def test_a_clean_lora_ends_with_a_proof(torch, worker, run_of, agent, llama, lora, train, rows, name, seed):
    """Warm-up, decay, accumulation, checkpointing and evaluation in between raise nothing; the loss falls."""
    mode, changes, own = CLEAN[name]
    run_of(mode, changes, seed=seed)
    model = lora(llama(worker.knobs().peek.precision.base_dtype, seed))
    keywords = {
        "learning_rate": 5e-3,
        "max_steps": 25,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 4,
        **own,
    }
    trainer = train(
        worker.prepare(model),
        gradient_accumulation_steps=2,
        activation_checkpointing=True,
        eval_strategy="steps",
        eval_steps=5,
        logging_steps=1,
        logging_strategy="steps",
        trainer=with_evaluation(rows),
        **keywords,
    )
    worker.done(25)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0]
    proof = agent.first("evidence", "proof")["values"]["proof"]
    assert proof["steps"] >= 20
    assert proof["skipped"] == 0
    assert proof["dtypes"]["trainable"].keys() == {worker.knobs().peek.precision.trainable_dtype}
    assert all(len(proof["key"][name]) == 64 for name in ("model", "trainable", "precision"))
    agent.first("done")


def with_evaluation(rows):
    """Give a Trainer that has something to evaluate on."""
    from transformers import Trainer

    class Evaluating(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, eval_dataset=rows[:8], **kwargs)

    return Evaluating


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16", "fp16-native"])
def test_a_clean_loop_ends_with_a_proof(torch, worker, run_of, agent, llama, rows, mode):
    """In plain torch too. A step counts once, even if several hooks report it."""
    run_of(mode, {"base_dtype": "float32"} if mode == "fp16" else {})
    model = worker.prepare(llama(worker.knobs().peek.precision.base_dtype))
    loop(worker, model, adam(torch, model, worker), rows, 19)
    worker.done(19)
    proof = agent.first("evidence", "proof")
    assert (proof["step"], proof["values"]["proof"]["steps"]) == (19, 19)


def test_a_warm_up_from_zero_and_a_long_tail_are_no_standstill(torch, worker, run_of, llama, rows):
    """A learning rate of zero, or of almost nothing compared with before, moves nothing and trips nothing."""
    run_of("fp32")
    model = worker.prepare(llama())
    optimizer = adam(torch, model, worker)
    rates = iter([0.0] * 8 + [1e-3] * 5 + [1e-16] * 12)
    optimizer.param_groups[0]["lr"] = next(rates)

    def turn(_step):
        optimizer.param_groups[0]["lr"] = next(rates, 0.0)

    loop(worker, model, optimizer, rows, 25, see=turn)
    worker.done(25)


def test_several_optimizers_and_negative_losses_raise_nothing(torch, worker, run_of, agent):
    """Two that take turns, one of them rarely, and a loss below zero: one tick a turn, no trip."""
    run_of("fp32")
    torch.manual_seed(0)
    maker, critic = (worker.prepare(torch.nn.Linear(4, 4)) for _ in range(2))
    ours, theirs = (torch.optim.Adam(one.parameters(), lr=1e-3) for one in (maker, critic))
    for step in range(1, 41):
        noise = torch.randn(8, 4)
        theirs.zero_grad()
        (critic(maker(noise).detach()).mean() - critic(noise).mean()).backward()
        theirs.step()
        if step % 7 == 0:
            ours.zero_grad()
            (-critic(maker(noise)).mean()).backward()
            ours.step()
        worker.log(step, loss=-0.1 * step)
    worker.done(40)
    assert agent.first("evidence", "proof")["values"]["proof"]["steps"] == 20


def test_a_loss_near_zero_and_a_rise_raise_nothing(worker, run_of, llama, train):
    """A policy's loss is zero while its gradient is not; a loss may double and come back."""
    run_of("fp32")
    poisons = [
        lambda loss, _step: loss - loss.detach(),
        lambda loss, step: loss * 2 if 8 <= step < 14 else loss,
    ]
    for poison in poisons:
        train(worker.prepare(llama(poison=poison)), max_steps=16)
        worker.done(16)


@pytest.mark.parametrize("keeps", [True, False], ids=["the same optimizer", "another optimizer"])
def test_parameters_that_are_replaced_are_followed(torch, worker, run_of, agent, llama, rows, keeps):
    """Parameters that left the model never move, which trips nothing; the new ones are judged."""
    run_of("fp32")
    model = worker.prepare(llama())
    optimizer = adam(torch, model, worker)
    loop(worker, model, optimizer, rows, 2)
    model.model, model.lm_head = copy.deepcopy(model.model), copy.deepcopy(model.lm_head)
    if keeps:
        optimizer.param_groups[0]["params"] = list(model.parameters())
    else:
        optimizer = adam(torch, model, worker)
    loop(worker, model, optimizer, rows, 12)
    with torch.no_grad():
        model.get_parameter("model.norm.weight").fill_(NAN)
    with pytest.raises(worker.Tripped, match="weights became non-finite"):
        loop(worker, model, optimizer, rows, 1)


def test_an_embedding_of_which_few_rows_move_raises_nothing(torch, worker, run_of, llama, rows):
    """Of a large vocabulary a step touches a handful of rows, and the sample must see one of them."""
    run_of("fp32")
    model = llama(vocab_size=20_000).requires_grad_(False)
    model.model.embed_tokens.requires_grad_(True)
    worker.prepare(model)
    loop(worker, model, adam(torch, model, worker, weight_decay=0.0), rows, 25)
    worker.done(25)


def test_parts_that_are_frozen_in_turn_raise_nothing(torch, worker, run_of, llama, rows):
    """A schedule may freeze what was looked at, and thaw it again."""
    run_of("fp32")
    model = worker.prepare(llama())
    optimizer = adam(torch, model, worker, weight_decay=0.0)

    def turn(step):
        for number, layer in enumerate(model.model.layers):
            layer.requires_grad_(step % 2 == number)

    loop(worker, model, optimizer, rows, 25, see=turn)
    worker.done(25)


@pytest.mark.long
def test_a_compiled_model_is_judged_too(torch, worker, run_of, agent, llama, rows):
    """The guard's hook does not end up inside the graph."""
    run_of("fp32")
    model = worker.prepare(llama(poison=from_step(6, lambda loss: loss * NAN)))
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(worker.Tripped, match="nan-divergence"):
        loop(worker, compiled, adam(torch, model, worker), rows, 12)
    assert agent.first("trip")["values"]["since"] == 6
    assert agent.first("trip")["values"]["loss"] == "nan"


def test_the_guard_does_not_change_the_numbers(torch, worker, run_of, llama, rows):
    """It draws from no dice of the training's and touches no weight."""
    plain = llama()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    plain.train()
    for row, _ in zip(rows, range(5), strict=False):
        optimizer.zero_grad()
        plain(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss.backward()
        optimizer.step()
    run_of("fp32")
    model = worker.prepare(llama())
    drawn = torch.get_rng_state()
    loop(worker, model, adam(torch, model, worker), rows, 5)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(
        torch.equal(one, other) for one, other in zip(plain.parameters(), model.parameters(), strict=True)
    )


@pytest.mark.parametrize("layers", [1, 4])
def test_an_optimizer_over_a_part_of_what_is_trainable_raises_nothing(
    torch, worker, run_of, llama, rows, layers
):
    """A head alone is trained, and nobody has frozen the rest: what should move is what the optimizer was given."""
    run_of("fp32")
    model = worker.prepare(llama(num_hidden_layers=layers))
    loop(worker, model, torch.optim.SGD(model.lm_head.parameters(), lr=1e-2), rows, 12)
    worker.done(12)


def test_an_optimizer_with_a_closure_raises_nothing(torch, worker, run_of, llama, rows):
    """Its gradients come within the step: before it they are those that were zeroed."""
    run_of("fp32")
    model = worker.prepare(llama())
    optimizer = adam(torch, model, worker)
    model.train()
    for row, _ in zip(itertools.cycle(rows), range(12), strict=False):
        optimizer.zero_grad(set_to_none=False)

        def closure(row=row):
            loss = model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss
            loss.backward()
            return loss

        optimizer.step(closure)
    worker.done(12)


def test_a_frozen_base_in_eight_bits_is_left_alone(torch, worker, run_of, llama, lora, rows):
    """Its elements cannot be looked at one by one."""
    run_of("fp32")
    model = lora(llama())
    packed = torch.nn.Parameter(torch.ones(8).to(torch.float8_e4m3fn), requires_grad=False)
    model.register_parameter("packed", packed)
    loop(worker, worker.prepare(model), adam(torch, model, worker), rows, 5)
    worker.done(5)


def test_a_scaler_that_collapses_between_good_steps_is_a_divergence(worker):
    """Two of three steps skipped never make a run of four, and the scale goes to nothing."""
    judge, scale = worker.guard.judge.Judge(), 65536.0
    for step in range(1, 60):
        skipped = step > 20 and step % 3 != 0
        scale = scale / 2 if skipped else scale
        seen = worker.guard.rules.Figures(
            loss=2.0, moved=not skipped, skipped=skipped, scale=scale, is_rated=True
        )
        trip = judge.judge_step(step, seen)
        if trip:
            break
    assert (trip.rule, trip.kind) == ("collapse", "nan-divergence")
    assert step < 45


def test_a_norm_that_the_scaler_answered_is_not_charged_to_the_next_step(torch, worker, run_of, llama, train):
    """Trainer logs the infinite norm of a skipped step after the guard has judged it; the run's last steps are good."""
    run_of("fp16")
    poison = lambda loss, step: overflow(loss) if step == 15 else loss  # noqa: E731 - one word
    train(worker.prepare(llama(poison=poison)), max_steps=16, logging_steps=1)
    worker.done(16)


def test_an_explosion_gives_up_the_step_that_made_it(worker):
    """A loss shows the weights that the step before has made: a checkpoint of that one is as wild."""
    judge = worker.guard.judge.Judge()
    for step in range(1, 60):
        trip = judge.judge_step(
            step, worker.guard.rules.Figures(loss=2.0 if step < 51 else 1e6, moved=True, is_rated=True)
        )
        if trip:
            break
    assert (trip.rule, trip.since, trip.step) == ("explosion", 50, 53)


def test_an_adapter_that_has_only_begun_makes_no_leap(torch, worker, run_of, llama, lora, rows):
    """A resumed LoRA whose B is still near zero grows by many times its size in a step."""
    run_of("fp32")
    model = lora(llama())
    with torch.no_grad():
        for name, part in model.named_parameters():
            if "lora_B" in name:
                part.normal_(std=1e-6)
    loop(worker, worker.prepare(model), adam(torch, model, worker, lr=1e-3), rows, 6)
    worker.done(6)


def test_gradients_of_zero_warn_first_and_end_a_training_after_a_tenth_of_its_steps(
    torch, worker, run_of, agent, llama, rows
):
    """A policy may earn nothing for a while, so four steps are a warning; ten of a hundred are too many."""
    run_of("fp32", steps=100)
    model = worker.prepare(llama(poison=from_step(6, lambda loss: loss * 0)))
    with pytest.raises(worker.Tripped, match="not-learning"):
        loop(worker, model, adam(torch, model, worker), rows, 40)
    warning, trip = agent.first("evidence", "warning"), agent.first("trip")
    assert (warning["step"], warning["values"]["warning"]["since"]) == (9, 6)
    assert (trip["step"], trip["values"]["since"]) == (15, 6)


def test_a_frozen_part_that_the_script_names_as_moving_may_move(torch, worker, run_of):
    """What follows no twin must be named, and a name that fits nothing is refused."""
    run_of("fp32")
    model = torch.nn.ModuleDict({"memory": torch.nn.Linear(7, 3), "head": torch.nn.Linear(4, 1)})
    model["memory"].requires_grad_(False)
    with pytest.raises(ValueError, match=r"'memry\.'"):
        worker.prepare(model, moving=["memry."])
    worker.prepare(model, moving=["memory."])
    optimizer = adam(torch, model, worker)
    for _ in range(8):
        model["memory"].weight.normal_()
        model["head"](torch.randn(2, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    worker.done(8)


def judged(worker, losses, leapt_at=()):
    """Judge a training by its losses; return the trip, if any, and the steps with a warning."""
    judge, warned = worker.guard.judge.Judge(), []
    for step, loss in enumerate(losses, 1):
        leapt = step in leapt_at
        seen = worker.guard.rules.Figures(loss=loss, moved=True, leapt=leapt, is_rated=True)
        trip = judge.judge_step(step, seen)
        warned += [step] if judge.warning else []
        judge.warning = None
        if trip:
            return trip, warned
    return None, warned


def test_a_loss_that_jumps_although_no_weight_leapt_is_a_harder_task(worker):
    """A value function's loss jumps with the first reward, and is noisy then; after a leap the same loss has diverged."""
    harder = [0.02] * 29 + [300.0, 900.0, 100.0, 310.0, 620.0] * 6
    assert judged(worker, harder) == (None, [32])
    noisy_before = [0.001, 0.003] * 15
    assert judged(worker, noisy_before + harder[29:]) == (None, [33])
    trip, _ = judged(worker, harder, leapt_at=(29,))
    assert (trip.rule, trip.step) == ("explosion", 33)
    rising = [0.02] * 29 + [300.0 * 3**step for step in range(9)]
    assert judged(worker, rising)[0].step <= 35


def test_a_rate_of_zero_ends_a_training_that_rests_as_long_as_it_trained(worker):
    """A warm-up may begin at zero, and a schedule may end early: twenty steps are a warning, and the end if few came before."""
    rules = worker.guard.rules

    def rest(first, steps):
        judge, warned = worker.guard.judge.Judge(100), []
        for step in range(1, steps + 1):
            rate = 0.0 if step >= first else 1e-3
            trip = judge.judge_step(step, rules.Figures(moved=rate > 0, rate=rate, is_rated=rate > 0))
            warned += [step] if judge.warning else []
            judge.warning = None
            if trip:
                return trip.rule, step, warned
        return None, steps, warned

    assert rest(1, 100) == ("rest", 20, [])
    assert rest(31, 100) == ("rest", 61, [50])
    assert rest(52, 100) == (None, 100, [71])


def test_a_gradient_of_rounding_errors_need_not_move_the_weights(worker):
    """Least squares converge until no update is large enough; an optimizer that moves nothing has large gradients."""
    rules = worker.guard.rules
    for size, rule in ((1e-7, None), (1e-3, "still")):
        judge = worker.guard.judge.Judge()
        steps = [rules.Figures(moved=True, size=1.0, gradient="fine", is_rated=True)]
        steps += [rules.Figures(moved=False, size=size, gradient="fine", is_rated=True)] * 8
        trips = [judge.judge_step(step, seen) for step, seen in enumerate(steps, 1)]
        assert next((trip.rule for trip in trips if trip), None) == rule


def test_leaps_end_a_training_only_while_its_loss_has_doubled(worker):
    """Weights that begin near zero leap at each step of a healthy training."""
    leaps = range(1, 40)
    assert judged(worker, [2.0] * 39, leaps) == (None, [])
    assert judged(worker, [2.0, 5.0, 5.0, 3.9] * 9, leaps) == (None, [])
    trip, _ = judged(worker, [2.0, 2.0, 5.0, 5.0, 5.0], leaps)
    assert (trip.rule, trip.since, trip.step) == ("leap", 2, 5)


def test_a_loss_that_rises_little_by_little_diverges_at_last(worker):
    """A tenth a step is never far above the twenty steps before."""
    trip, _ = judged(worker, [2.0 * 1.1**step for step in range(900)])
    assert trip.rule == "explosion"
    assert trip.figures["loss"] < 1e6


def test_steps_without_an_optimizer_are_a_warning_before_the_end(torch, worker, run_of, agent):
    """A day of training would be lost otherwise; only `done` may end it, because a policy plays before it learns."""
    run_of("fp32", split={"global_batch": 8, "ranks": 1, "micro_batch": 4, "accumulation": 2})
    model = worker.prepare(torch.nn.Linear(4, 1))
    for step in range(1, 61):
        model(torch.randn(2, 4)).sum().backward()
        worker.log(step, loss=1.0)
    assert agent.first("evidence", "warning")["step"] == 40
    with pytest.raises(worker.Tripped, match=r"optimizer\.step\(\) missing"):
        worker.done(60)
    assert agent.first("trip")["step"] == 59


def test_a_part_that_thaws_is_no_moving_base(torch, worker, run_of):
    """The frozen sample is drawn anew, although all that was trained before still is."""
    run_of("fp32")
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 1))
    model[0].requires_grad_(False)
    worker.prepare(model)
    for step in range(1, 13):
        if step in (1, 5):
            model[0].requires_grad_(step == 5)
            optimizer = adam(torch, model, worker, lr=0.1)
        model(torch.randn(8, 16)).sub(3).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    worker.done(12)
