"""What the start-up hook reports of a Trainer, over a real Unix socket."""

import importlib
import math
import pickle
from types import SimpleNamespace

import pytest


@pytest.fixture
def observer(worker, run):
    """The hook's part of the worker, in a run."""
    return importlib.import_module("launcher_worker.observer")


@pytest.fixture
def train(torch, observer, llama, rows, run, monkeypatch):
    """Train as a script of its own would; the third step's loss is lost, but not its weights. Give the Trainer."""
    from transformers import Trainer, TrainingArguments, trainer

    monkeypatch.setattr(trainer, "DEFAULT_CALLBACKS", [*trainer.DEFAULT_CALLBACKS])
    observer.observe_trainer(trainer)

    def poison(loss, number):
        return loss * 0 + torch.tensor(math.nan) * loss.detach() if number == 5 else loss

    def start(**more):
        arguments = TrainingArguments(
            str(run / "checkpoints"), max_steps=6, logging_steps=2, gradient_accumulation_steps=2, use_cpu=True,
            per_device_train_batch_size=2, save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        made = Trainer(llama(poison=poison), arguments, train_dataset=rows, **more)
        made.train()
        return made

    return start


@pytest.mark.training
def test_a_lost_loss_is_reported_although_trainer_leaves_it_out(train, agent):
    """Trainer prints the mean of the other losses; the others are reported as it prints them."""
    printed = [line["loss"] for line in train().state.log_history if "loss" in line]
    agent.first("end")
    events = agent.events(1)
    assert [event["kind"] for event in events if event["kind"] != "beat"] == ["begin", *["metric"] * 4, "end"]
    assert all(math.isfinite(loss) for loss in printed)
    losses = [event["values"]["loss"] for event in events if "loss" in event.get("values", ())]
    assert losses == [printed[0], "nan", printed[2]]
    assert {event["source"] for event in events} == {"hook"}
    assert events[0]["values"].keys() == {"step", "steps", "observed", "logs"}


@pytest.mark.training
def test_a_script_that_reports_by_itself_is_not_reported_twice(train, worker, agent):
    """With the worker's own callback the hook is silent, and that callback restores the loss too."""
    train(callbacks=[worker.trainer_callback()])
    agent.first("end")
    events = agent.events(1)
    assert not [event for event in events if "source" in event]
    assert [event["values"]["loss"] for event in events if "loss" in event.get("values", ())][1] == "nan"


def test_the_first_error_of_the_hook_is_recorded_and_none_reaches_the_script(observer, agent, capsys):
    """For example in a transformers that names things differently."""
    for _ in range(3):
        observer.observe_trainer(SimpleNamespace())
        observer.Observer().on_step_end(None, None, None)
    observer.process_channel.close()
    (event,) = agent.events(1)
    assert (event["kind"], event["source"]) == ("evidence", "hook")
    assert event["values"] == {
        "hook": "AttributeError: 'types.SimpleNamespace' object has no attribute 'DEFAULT_CALLBACKS'"
    }
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_no_error_of_the_hook_is_not_kept(observer, error):
    """Ctrl-C in a callback ends the script."""

    class Names:
        @property
        def DEFAULT_CALLBACKS(self):  # noqa: N802 # transformers' name
            raise error

    if error is MemoryError:
        observer.observe_trainer(Names())
    else:
        with pytest.raises(error):
            observer.observe_trainer(Names())


def test_other_ranks_report_nothing(observer, agent):
    """Only the first process of a training reports."""
    watching, state = (
        observer.Observer(),
        SimpleNamespace(is_world_process_zero=False, global_step=1, max_steps=2),
    )
    arguments = SimpleNamespace(logging_nan_inf_filter=True, logging_strategy="steps")
    watching.on_train_begin(arguments, state, None)
    watching.on_step_end(arguments, state, None)
    watching.on_log(arguments, state, None, logs={"loss": 1.0})
    watching.on_train_end(arguments, state, None)
    assert agent.connections == []


def test_an_observer_can_be_pickled_and_ignores_events_that_it_does_not_know(observer):
    """Ray and `spawn` send whole Trainers to other processes; a newer Trainer has more events."""
    copy = pickle.loads(pickle.dumps(observer.Observer()))  # noqa: S301 # our own
    assert copy.on_something_new(None, None, None, more=1) is None
    with pytest.raises(AttributeError):
        copy.something_else  # noqa: B018 # read for its error


LINES = [
    ({"loss": 0.0, "grad_norm": math.nan}, True, "nan"),
    ({"loss": 0.0, "grad_norm": math.nan}, False, 0.0),
    ({"loss": 0.0, "grad_norm": 0.5}, True, 0.0),
    ({"loss": 0.0}, True, 0.0),
    ({"loss": 1.5, "grad_norm": math.inf}, True, 1.5),
    ({"loss": math.inf}, False, "inf"),
]


@pytest.mark.parametrize(("logs", "filters", "loss"), LINES)
def test_without_the_losses_themselves_a_zero_with_a_lost_norm_is_lost(worker, logs, filters, loss):
    """As the log's reader has it; a scaler's first steps overflow, with a good loss."""
    lines = importlib.import_module("launcher_worker.trainer_lines").TrainerLines()
    state = SimpleNamespace()
    lines.begin(SimpleNamespace(logging_nan_inf_filter=filters), state)
    assert lines.metrics(state, logs)["loss"] == loss


@pytest.mark.parametrize("written", ["", "r16", "16", "-1"])
def test_a_rank_of_the_scripts_own_is_no_process_rank(worker, monkeypatch, written):
    """RANK alone may be that of a LoRA; whoever starts ranks sets WORLD_SIZE too."""
    monkeypatch.setenv("RANK", written)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert importlib.import_module("launcher_worker.channel").rank() == 0


def test_an_error_within_the_report_of_an_error_stays_with_the_hook(observer, monkeypatch):
    """The script goes on, whatever breaks."""

    def fail(*_words, **_named):
        raise ValueError

    monkeypatch.setattr(observer, "send", fail)
    observer.Observer().on_train_end(None, SimpleNamespace(is_world_process_zero=True), None)
