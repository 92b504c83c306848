"""Poisoned trainings, by our plan for a TITAN RTX: each is caught within five steps, mended where another rung can, and
none is told as a success.
"""

import json

import pytest
from testbed.client import REPOSITORY
from testbed.llama import save_small_llama

pytestmark = [pytest.mark.training, pytest.mark.long]

REPORTS = REPOSITORY / "tests" / "reports"
WORDS = (
    "--profile", "titan_rtx", "--rehearse", "--set", "model=./model", "--set", "method=lora", "--set",
    "batch.global=8", "--set", "save_every_steps=5", "--name", "poisoned",
)  # fmt: skip


def widen(model):
    """Give it residuals of 8e4, as models born in bf16 may have."""
    model.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight.sign() * 4.5e4)
    for layer in model.model.layers:
        layer.mlp.gate_proj.weight *= 20
        layer.mlp.up_proj.weight *= 20
        layer.mlp.down_proj.weight *= 6e3


def trained(client, poison, *words, change=None):
    """Run a poisoned training to its end; return how it ended, and of each attempt its record, state and events."""
    for path in REPORTS.glob("*.py"):
        (client.project / path.name).write_text(path.read_text())
    save_small_llama(client.project / "model", change)
    done = client.run(*WORDS, *words, "--", "python", "poisoned.py", poison, timeout=400)
    (run,) = client.runs.glob("[0-9]*")
    attempts = []
    for folder in sorted(run.glob("[0-9]*"))[1:]:
        attempt, state = (json.loads((folder / name).read_text()) for name in ("attempt.json", "state.json"))
        attempts.append(
            (
                attempt,
                state,
                [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()],
            )
        )
    return done, attempts


def caught(state):
    """The step at which the guard, or the agent, gave up, the first bad one, and the class."""
    return state["failure"]["step"], state["failure"]["since"], state["failure"]["class"]


def test_what_no_rung_can_mend_fails_as_what_it_is(client):
    """Each rung gets its attempt, from before the first bad step, and the last one ends the run."""
    done, attempts = trained(client, "nan")
    assert done.returncode == 1
    assert "succeeded" not in done.stderr
    assert [attempt["rung"] for attempt, _, _ in attempts] == [0, 1, 2]
    for _, state, _ in attempts:
        step, since, name = caught(state)
        assert name == "nan-divergence"
        assert since in (11, 12)  # by the loss that was lost, or by the step that lost it
        assert step < since + 5
    bounds = [(attempt["remedy"] or {}).get("resume_before") for attempt, _, _ in attempts]
    assert bounds[0] is None
    assert set(bounds[1:]) <= {11, 12}
    begins = [
        [one["values"]["step"] for one in events if one["kind"] == "begin"] for _, _, events in attempts
    ]
    assert begins == [[0], [10], [10]]
    assert (attempts[-1][1]["state"], attempts[-1][1]["reason"]) == ("failed", "nan-divergence")


def test_what_overflows_only_in_half_precision_is_mended_in_fp32(client):
    """Gradients of 1e12 are no trouble there; the last checkpoint before them is what it goes on from."""
    done, attempts = trained(client, "overflow")
    assert done.returncode == 0, done.stderr
    assert [attempt["precision"]["mode"] for attempt, _, _ in attempts] == ["fp16", "fp16", "fp32"]
    for _, state, _ in attempts[:2]:
        step, since, name = caught(state)
        assert name == "nan-divergence"
        assert since in (11, 12)  # by the loss that was lost, or by the step that lost it
        assert step < since + 5
    assert attempts[-1][1]["state"] == "succeeded"


def test_a_rate_that_destroys_the_model_is_a_divergence(client):
    """A rate of 1e3 leaves a dead model. No rung is left below fp32, so it is one attempt."""
    done, attempts = trained(client, "rate", "--precision", "fp32")
    assert done.returncode == 1
    assert len(attempts) == 1
    step, since, name = caught(attempts[0][1])
    assert (name, attempts[0][1]["reason"]) == ("nan-divergence", "nan-divergence")
    assert 1 <= since <= 3
    assert step <= since + 5
    assert "lower the learning rate" in done.stderr


@pytest.mark.parametrize(("poison", "begins"), [("frozen", 1), ("zero", 12)])
def test_what_does_not_learn_is_stopped_at_once(client, poison, begins):
    """Another precision would not learn either: one attempt, and the reason."""
    done, attempts = trained(client, poison, "--precision", "fp32")
    assert done.returncode == 1
    assert len(attempts) == 1
    step, since, name = caught(attempts[0][1])
    assert name == "not-learning"
    assert begins <= since <= begins + 2
    assert step < since + 5
    assert (attempts[0][1]["state"], attempts[0][1]["reason"]) == ("failed", "not-learning")
    assert "not-learning" in done.stderr


def test_residuals_beyond_fp16_are_mended_by_the_next_rung(client):
    """A residual stream of 8e4 overflows an fp16 base; over an fp32 base the same training succeeds, with no person."""
    done, attempts = trained(client, "wide", change=widen)
    assert done.returncode == 0, done.stderr
    assert [attempt["rung"] for attempt, _, _ in attempts] == [0, 1]
    assert [attempt["precision"]["base_dtype"] for attempt, _, _ in attempts] == ["float16", "float32"]
    step, since, name = caught(attempts[0][1])
    assert (since, name) == (1, "nan-divergence")
    assert step <= 5
    assert attempts[1][1]["state"] == "succeeded"
    losses = [
        float(one["values"]["loss"])
        for one in attempts[1][2]
        if one["kind"] == "metric" and "loss" in one["values"]
    ]
    assert losses[-1] < losses[0]
    assert "attempt 1 ended" in done.stderr
    assert "remedy" in done.stderr
