"""What events and the log of an attempt count for."""

import pytest

from launcher.agent.attempt.progress import AttemptProgress


def begun(**values):
    return {"kind": "begin", "source": "hook", "values": {"step": 0, "steps": 9, **values}}


def test_a_script_that_only_the_hook_observes_does_not_use_the_worker():
    """Its end is judged by its exit code, but its metrics replace those of its log."""
    progress = AttemptProgress()
    progress.learn(begun(logs=True))
    assert not progress.learn_log_metrics([(1, {"loss": 9.0})])
    progress.learn({"kind": "metric", "source": "hook", "step": 4, "values": {"loss": 0.5}})
    assert (progress.step, progress.loss, progress.has_trained) == (4, 0.5, True)
    assert not progress.uses_worker
    progress.learn({"kind": "consumed", "values": {"knobs": []}})
    assert progress.uses_worker


@pytest.mark.parametrize(
    ("later", "is_cut_short"),
    [
        ([], True),
        ([{"kind": "beat", "source": "hook", "step": 8}], True),
        ([{"kind": "beat", "source": "hook", "step": 9}], False),
        ([{"kind": "beat", "source": "hook", "step": 3}, {"kind": "end", "source": "hook"}], False),
        ([{"kind": "end", "source": "hook"}, begun(step=3)], True),
        ([{"kind": "done", "step": 4}], False),
    ],
)
def test_a_training_is_cut_short_that_reports_neither_its_end_nor_its_last_step(later, is_cut_short):
    """A Trainer that stops early reports its end."""
    progress = AttemptProgress()
    for event in (begun(), *later):
        progress.learn(event)
    assert progress.is_cut_short == is_cut_short


def test_the_log_is_read_until_the_hook_has_metrics():
    """A Trainer with `logging_strategy="no"` logs its summary alone, and its script may print losses itself."""
    progress = AttemptProgress()
    progress.learn(begun(logs=False))
    progress.learn({"kind": "beat", "source": "hook", "step": 3})
    assert progress.learn_log_metrics([(3, {"loss": 9.0})])
    progress.learn({"kind": "metric", "source": "hook", "step": 9, "values": {"train_loss": 1.0}})
    assert not progress.learn_log_metrics([(9, {"loss": 8.0})])


@pytest.mark.parametrize("source", [{}, {"source": "hook"}])
def test_steps_of_the_hook_count_for_a_hang_until_its_training_ends(source):
    """As those of the worker: what follows a training may be silent."""
    progress = AttemptProgress()
    for step in (1, 2, 3):
        progress.learn({"kind": "beat", "step": step, **source})
    assert progress.liveness.has_pace
    progress.learn({"kind": "end", **source})
    assert not progress.liveness.has_pace


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(40, {"accuracy": 0.0})], ["accuracy"]),
        ([(40, {"eval/exact_match": 0.0, "answer_rate": 0})], ["eval/exact_match", "answer_rate"]),
        ([(20, {"accuracy": 0.0}), (40, {"accuracy": 0.1})], []),
        ([(20, {"accuracy": 0.5}), (40, {"accuracy": 0.0})], ["accuracy"]),
        ([(40, {"eval_accuracy": 0.91, "eval_attack_accuracy": 0.0})], []),
        ([(40, {"mean_token_accuracy": 0.6, "accuracy": 0.0, "answer_rate": 0.2})], ["accuracy"]),
        ([(19, {"accuracy": 0.0})], []),
        ([(40, {"loss": 0.0, "inaccuracy": 0.0, "accuracy": "nan"})], []),
    ],
)
@pytest.mark.parametrize("source", ["worker", "log"])
def test_shares_of_right_answers_that_are_zero_at_last_are_known(reports, expected, source):
    """Whoever reports them."""
    progress = AttemptProgress()
    for step, values in reports:
        if source == "worker":
            progress.learn({"kind": "metric", "step": step, "values": values})
        else:
            progress.learn_log_metrics([(step, values)])
    assert progress.zero_shares == expected
