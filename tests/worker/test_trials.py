"""The worker in a trial of `launch verify`: held weights, gradients beside fp32's, what is measured, and its end."""

import atexit
import contextlib
import math
import os
import threading

import pytest

from launcher.worker.launcher_worker.trials.card import kernels_for

KERNELS = [
    # capability, the architectures of a torch, what the card runs
    ((7, 5), ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_90"], "sm_75"),
    ((6, 0), ["sm_50", "sm_60", "sm_70"], "sm_60"),
    ((6, 1), ["sm_50", "sm_60", "sm_70"], "sm_60"),
    ((6, 0), ["sm_75", "sm_80", "sm_90", "sm_100", "compute_120"], None),
    ((8, 9), ["sm_75", "sm_80", "sm_86", "sm_90"], "sm_86"),
    ((9, 0), ["sm_80", "sm_90a", "compute_80"], "sm_90"),
    ((12, 0), ["sm_80", "sm_90", "compute_90"], "compute_90"),
    ((8, 0), [], None),
]


@pytest.mark.parametrize(("capability", "architectures", "runs"), KERNELS)
def test_a_card_runs_code_of_its_major_version_or_compiles_older_ptx(capability, architectures, runs):
    """Of several it runs the newest."""
    assert kernels_for(capability, architectures) == runs


@pytest.mark.training
def test_the_speed_backward_is_timed_by_itself(torch, monkeypatch):
    """On a busy machine forward and backward together may take less time than forward did: 536,870 TFLOP/s."""
    from launcher.worker.launcher_worker.trials import card

    seen, times = [], iter([0.5, 0.25])

    def timed(_torch, _device, compute):
        seen.append(compute())
        return next(times)

    monkeypatch.setattr(card, "_seconds", timed)
    found = card._product(torch, "cpu", torch.float32, False)
    work = 2 * card.SIZES["cpu"] ** 3 / card.TERA
    assert found == {"forward_tflops": work / 0.5, "backward_tflops": 2 * work / 0.25, "finite": True}
    assert [len(one) for one in seen] == [card.SIZES["cpu"], 2]


@pytest.fixture
def trial_of(run_of, tmp_path, monkeypatch):
    """Put the worker into a trial, whose end does not end this process."""
    monkeypatch.setattr("launcher_worker.trials.trial_watch.LEAVE_S", 1e6)

    def put(mode="fp32", steps=8, held=4, is_reference=True, kind="rung", **changes):
        told = {
            "kind": kind, "steps": steps, "held": held, "folder": str(tmp_path / "trials"),
            "is_reference": is_reference,
        }  # fmt: skip
        return run_of(
            mode, {"base_dtype": "float32"} if mode == "fp16" else None, trial=told, steps=40, **changes
        )

    return put


def measured(agent):
    """What the worker told the agent."""
    return agent.first("evidence", "trial")["values"]["trial"]


@pytest.mark.training
def test_a_trainer_ends_after_its_steps_with_what_they_showed(worker, trial_of, agent, llama, train):
    """It leaves by exit status 0: the job's own end, which saves and evaluates, is not reached."""
    trial_of()
    with pytest.raises(SystemExit) as left:
        train(worker.prepare(llama()), max_steps=40)
    assert left.value.code == 0
    found = measured(agent)
    assert (found["kind"], found["steps"], found["skipped"], found["moved"]) == ("rung", 8, 0, True)
    assert found["cosine"] == pytest.approx(1.0)
    assert found["compared"] == 4
    assert found["step_s"] > 0
    assert found["tokens_per_s"] > 0
    assert found["peak_gb"] > 0.05
    assert found["memory_of"] == "process"
    assert found["dtypes"]["trainable"].keys() == {"float32"}
    assert len(found["key"]["precision"]) == 64


@pytest.mark.training
def test_held_steps_leave_the_weights_where_they_are(torch, worker, trial_of, agent, llama, rows):
    """In a loop of plain torch; later steps move them, and the learning rate is the job's own again."""
    trial_of(steps=7)
    model = worker.prepare(llama())
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    watched = next(one for one in model.parameters() if one.requires_grad)
    before, seen = watched.detach().clone(), []

    def loop():
        for row in rows:
            model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss.backward()
            optimizer.step()
            seen.append((torch.equal(watched, before), optimizer.param_groups[0]["lr"]))
            optimizer.zero_grad()

    model.train()
    with pytest.raises(SystemExit):
        loop()
    assert seen == [(True, 1e-3)] * 4 + [(False, 1e-3)] * 2
    assert measured(agent)["steps"] == 7


@pytest.mark.training
def test_a_model_that_trains_in_eval_mode_has_a_speed(torch, worker, trial_of, agent, llama, rows):
    """As from_pretrained leaves it, and our distillation; an evaluation without gradients does not count."""
    trial_of(steps=8)
    model = worker.prepare(llama()).eval()
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)

    def loop():
        for row in rows:
            with torch.no_grad():
                model(input_ids=row["input_ids"][None].repeat(50, 1))
            model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(SystemExit):
        loop()
    found = measured(agent)
    assert found["examples_per_s"] * found["step_s"] == pytest.approx(1.0)
    assert found["tokens_per_s"] * found["step_s"] == pytest.approx(len(rows[0]["input_ids"]), rel=0.5)


@pytest.mark.training
def test_an_optimizer_with_rates_of_its_own_is_followed_and_not_compared(
    torch, worker, trial_of, agent, llama, rows
):
    """It cannot be held, as transformers' Adafactor with relative steps; that is no fault of the script."""
    from transformers.optimization import Adafactor

    trial_of(steps=7)
    model = worker.prepare(llama())
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = Adafactor(trained, lr=None, relative_step=True, warmup_init=False)

    def loop():
        for row in rows:
            model(input_ids=row["input_ids"][None], labels=row["labels"][None]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    model.train()
    with pytest.raises(SystemExit):
        loop()
    found = measured(agent)
    assert (found["steps"], found["compared"], found["cosine"], found["moved"]) == (7, 0, None, True)


@pytest.mark.training
@pytest.mark.parametrize("where", ["in a thread", "again"])
def test_a_job_that_an_exit_does_not_end_is_ended_at_once(worker, trial_of, agent, llama, monkeypatch, where):
    """A thread would end alone and its process wait for ever; a script that catches the exit would train on."""
    from launcher_worker.guard.judge import Judge
    from launcher_worker.trials.trial_watch import TrialWatch

    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    trial_of()
    watch = TrialWatch(worker.prepare(llama()), Judge)
    if where == "in a thread":

        def leave():
            with contextlib.suppress(SystemExit):
                watch.end()

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    else:
        with pytest.raises(SystemExit):
            watch.end()
        assert ended == []
        with pytest.raises(SystemExit):
            watch.end()
    assert ended == [0]


@pytest.mark.training
def test_a_job_that_cannot_leave_is_ended(worker, trial_of, agent, llama, monkeypatch):
    """It holds a thread that waits for ever, for example; then Python waits for it too."""
    from launcher_worker.guard.judge import Judge
    from launcher_worker.trials import trial_watch

    has_ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: has_ended.set() if code == 0 else None)
    trial_of()
    monkeypatch.setattr(trial_watch, "LEAVE_S", 0.01)
    watch = trial_watch.TrialWatch(worker.prepare(llama()), Judge)
    with pytest.raises(SystemExit):
        watch.end()
    assert has_ended.wait(10)


@pytest.mark.training
def test_a_rehearsed_job_says_what_ran_on_the_card_before_it_is_ended(
    worker, trial_of, agent, llama, monkeypatch
):
    """Without that it would have shown nothing of the card; a job that is ended at once runs no exit functions."""
    from launcher_worker.guard.judge import Judge
    from launcher_worker.rehearsal import devices
    from launcher_worker.trials.trial_watch import TrialWatch

    trial_of(rehearsed=True, card={"name": "T4", "capability": "7.5", "memory_bytes": 16 << 30, "count": 1})
    watch = TrialWatch(worker.prepare(llama()), Judge)
    watch.end_step(1)
    monkeypatch.setattr(devices.moves, "count", 3)
    with pytest.raises(SystemExit):
        watch.end()
    assert agent.first("evidence", "rehearsal")["values"]["rehearsal"] == {"card": "T4", "moves": 3}
    assert agent.first("evidence", "trial")


@pytest.mark.training
def test_a_sample_of_gradients_is_compared_with_that_of_the_same_step(torch, tmp_path):
    """The angle counts, not the length; another step, another size or none at all give no figure."""
    from launcher.worker.launcher_worker.trials import gradients

    one = torch.nn.Linear(700, 1000)
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    assert gradients.sample(optimizer) is None
    one(torch.randn(4, 700)).pow(2).sum().backward()
    elements = gradients.sample(optimizer)
    assert elements.shape == (701_000,)
    folder = str(tmp_path / "trials")
    assert gradients.cosine_to_reference(folder, 1, elements) is None
    gradients.write(folder, 1, elements)
    assert gradients.cosine_to_reference(folder, 1, elements * 3) == pytest.approx(1.0)
    assert gradients.cosine_to_reference(folder, 1, -elements) == pytest.approx(-1.0)
    assert abs(gradients.cosine_to_reference(folder, 1, elements.roll(1))) < 0.9
    assert gradients.cosine_to_reference(folder, 2, elements) is None
    assert gradients.cosine_to_reference(folder, 1, elements[:-1]) is None
    assert gradients.cosine_to_reference(folder, 1, elements * 0) is None


@pytest.mark.training
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_not_that_of_fp32(torch, tmp_path, value):
    """No figure would be taken for good. Where fp32's own is not finite, nothing can be said."""
    from launcher.worker.launcher_worker.trials import gradients

    folder, elements = str(tmp_path / "trials"), torch.ones(100)
    broken = elements.clone()
    broken[3] = value
    gradients.write(folder, 1, elements)
    assert gradients.cosine_to_reference(folder, 1, broken) == 0.0
    gradients.write(folder, 2, broken)
    assert gradients.cosine_to_reference(folder, 2, elements) is None


@pytest.mark.training
def test_a_step_that_a_scaler_has_a_fused_optimizer_leave_out_is_not_compared(
    torch, worker, trial_of, agent, llama
):
    """It is called with the gradients that overflowed."""
    from launcher_worker.guard.judge import Judge
    from launcher_worker.trials.trial_watch import TrialWatch

    trial_of()
    model = worker.prepare(llama())
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    watch = TrialWatch(model, Judge)

    def step(gradient, found_inf):
        trained[0].grad = torch.full_like(trained[0], gradient)
        optimizer.found_inf = torch.tensor(found_inf)
        watch.before_step(optimizer)
        watch.after_step(optimizer)
        watch.end_step(1)

    step(math.inf, 1.0)
    step(1.0, 0.0)
    with pytest.raises(SystemExit):
        watch.end()
    found = measured(agent)
    assert (found["compared"], found["cosine"]) == (1, pytest.approx(1.0))


@pytest.mark.training
def test_a_large_model_is_sampled_in_all_columns(torch):
    """A million elements at most, with an odd stride: a broken column of a matrix is not passed over."""
    from launcher.worker.launcher_worker.trials import gradients

    weight = torch.nn.Parameter(torch.zeros(4096, 1024))
    weight.grad = torch.zeros(4096, 1024)
    weight.grad[:, 5] = 1.0
    elements = gradients.sample(torch.optim.SGD([weight], lr=0.1))
    assert elements.numel() <= gradients.MAX_ELEMENTS
    assert elements.sum() > 100


@pytest.mark.training
def test_a_job_that_ends_before_reports_what_there_was(worker, trial_of, agent, llama, train, monkeypatch):
    """Its own number of steps may be smaller."""
    at_exit = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    trial_of(steps=30)
    train(worker.prepare(llama()), max_steps=5)
    for report in at_exit:
        report()
    found = measured(agent)
    assert (found["steps"], found["compared"]) == (5, 4)
    assert "step_s" not in found


@pytest.mark.training
def test_a_broken_training_is_ended_by_the_guard_as_ever(worker, trial_of, agent, llama, train):
    """Also while the weights are held."""
    trial_of()
    model = worker.prepare(llama(poison=lambda loss, step: loss * math.nan if step >= 2 else loss))
    with pytest.raises(worker.Tripped, match="nan-divergence"):
        train(model, max_steps=40)
    assert agent.first("trip")["step"] <= 4


@pytest.mark.training
def test_no_step_counts_as_standing_still_while_it_is_held(worker, trial_of, agent, llama, train):
    """The guard knows the learning rate that a step really had."""
    trial_of(steps=14, held=12)
    with pytest.raises(SystemExit):
        train(worker.prepare(llama()), max_steps=40)
    assert measured(agent)["compared"] == 12
