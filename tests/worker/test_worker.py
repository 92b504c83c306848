"""The worker, over a real Unix socket and a real attempt.json."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

WORKER = Path(__file__).parents[2] / "launcher" / "worker"


def test_outside_a_run_there_are_plain_defaults_and_no_torch(tmp_path):
    """A script run by hand gets fp32, a micro-batch of 8 and folders below ./out, without loading torch."""
    code = (
        "import sys, launcher_worker as w; k = w.knobs(); "
        "print(k.precision.mode, k.split.micro_batch, k.steps, k.run, k.checkpoints, 'torch' in sys.modules)"
    )
    environment = {"PYTHONPATH": str(WORKER), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert out.split() == ["fp32", "8", "None", "None", str(tmp_path / "out" / "checkpoints"), "False"]


def test_outside_a_run_log_prints_one_line(worker, capsys):
    """By hand a metric is a line that a person can read."""
    worker.log(10, loss=1.23456, name="x")
    assert capsys.readouterr().out == "step 10  loss 1.235  name x\n"


def test_knobs_are_those_of_the_attempt(worker, run):
    """The values in force come from attempt.json, whose unknown fields are ignored."""
    plan = worker.knobs()
    assert (plan.run, plan.attempt, plan.seed, plan.settings) == (
        "1121-sft-ab12",
        2,
        7,
        {"learning_rate": 0.005},
    )
    assert plan.split == worker.Split(global_batch=64, ranks=1, micro_batch=16, accumulation=4)
    assert plan.precision.base_dtype == "bfloat16"
    assert plan.checkpoints == str(run / "checkpoints")


def test_a_knob_is_reported_once_when_first_read(worker, run, agent):
    """Consumption is an event at the first reading; plain attributes and peeks send nothing."""
    plan = worker.knobs()
    plan.peek.precision, plan.model  # noqa: B018  # read for their lack of an effect
    for _ in range(2):
        plan.loader_workers, plan.steps  # noqa: B018  # read for their effect
    worker.done(3)
    consumed = [event["values"]["knobs"] for event in agent.events(3) if event["kind"] == "consumed"]
    assert consumed == [["loaders"], ["steps"]]


@pytest.mark.parametrize("text", ["", "[]", '{"run": "x"}'])
def test_an_unreadable_attempt_is_named(worker, run, text):
    """A broken attempt.json stops the script with the file's name."""
    (run / "attempt.json").write_text(text)
    with pytest.raises(RuntimeError, match=r"attempt\.json"):
        worker.knobs()


def test_a_missing_attempt_is_named(worker, tmp_path, monkeypatch):
    """A run whose attempt.json is missing doesn't pass for a script run by hand."""
    monkeypatch.setenv("LAUNCH_ATTEMPT", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"attempt\.json"):
        worker.knobs()


def test_a_metric_carries_rank_step_time_and_strict_numbers(worker, run, agent, monkeypatch):
    """A number that is not finite becomes a string, and anything with a float inside a float."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    worker.log(5, loss=float("nan"), norm=float("inf"), low=-float("inf"), ok=True, n=2, scalar=Scalar(0.5))
    (event,) = agent.events(1)
    assert (event["kind"], event["rank"], event["step"]) == ("metric", 3, 5)
    assert isinstance(event["time"], float)
    expected = {"loss": "nan", "norm": "inf", "low": "-inf", "ok": True, "n": 2, "scalar": 0.5}
    assert event["values"] == expected


class Scalar:
    """Stands for a torch or numpy scalar: no number, but it gives one."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


def test_a_value_that_is_no_metric_is_named(worker):
    """A mistake in the script's own log call raises there."""
    with pytest.raises(
        TypeError, match=r"^metric 'curve' must be a number, a bool or a string, not \[1, 2\]$"
    ):
        worker.log(1, curve=[1, 2])


def test_begin_progress_and_done_have_their_own_kinds(worker, run, agent):
    """The three marks of a run's way arrive as agreed."""
    worker.begin(0, 300)
    worker.progress("generation", 3, 9)
    worker.done(300)
    begin, progress, done = agent.events(3)
    assert (begin["kind"], begin["values"]) == ("begin", {"step": 0, "steps": 300})
    assert (progress["kind"], progress["values"]) == (
        "progress",
        {"stage": "generation", "done": 3, "total": 9},
    )
    assert (done["kind"], done["step"]) == ("done", 300)


def test_one_connection_carries_every_thread_whole(worker, run, agent):
    """Long lines of several threads do not mix."""
    text = "x" * 100_000
    threads = [
        threading.Thread(target=lambda i=i: [worker.log(i, text=text) for _ in range(5)]) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = agent.events(20)
    assert len(agent.connections) == 1
    assert {event["values"]["text"] for event in events} == {text}


@pytest.mark.filterwarnings(
    "ignore:.*fork.*:DeprecationWarning"
)  # forking beside threads is what is tried here
def test_a_forked_child_opens_its_own_connection(worker, run, agent):
    """Two processes never write into one stream."""
    worker.log(1, who="parent")
    agent.events(1)
    child = os.fork()
    if child == 0:
        worker.log(2, who="child")
        os._exit(0)
    os.waitpid(child, 0)
    worker.log(3, who="parent")
    agent.events(3)
    assert sorted([event["step"] for event in lines] for lines in agent.connections) == [[1, 3], [2]]


def test_without_an_agent_the_worker_is_silent(worker, run, monkeypatch):
    """A training does not die of a lost agent."""
    monkeypatch.setenv("LAUNCH_SOCKET", str(run / "nobody"))
    worker.log(1, loss=1.0)
    worker.done(1)


def test_after_an_error_the_worker_stays_silent(worker, run, agent, monkeypatch):
    """Half a line may be out, so there is no second connection."""
    monkeypatch.setenv("LAUNCH_SOCKET", str(run / "nobody"))
    worker.log(1, loss=1.0)
    monkeypatch.setenv("LAUNCH_SOCKET", agent.address)
    worker.log(2, loss=1.0)
    assert agent.connections == []


def write_weights(folder: str, text: str = "weights") -> None:
    Path(folder, "inner").mkdir()
    Path(folder, "inner", "weights.bin").write_text(text)


def test_a_saved_checkpoint_is_sealed_reported_and_found(worker, run, agent):
    """What a function writes appears as step-N with a manifest, and is where a resume starts."""
    worker.save(10, write_weights)
    folder = run / "checkpoints" / "step-10"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["version"], manifest["step"]) == (1, 10)
    assert manifest["files"]["inner/weights.bin"]["size"] == 7
    event = agent.first("checkpoint")
    assert (event["kind"], event["step"], event["values"]["path"]) == ("checkpoint", 10, "step-10")
    assert event["values"]["seconds"] > 0
    assert os.listdir(folder.parent) == ["step-10"]


def test_an_existing_folder_is_sealed_in_place(worker, run):
    """A checkpoint that a library wrote gets its manifest; leftovers of an earlier sealing are not counted."""
    folder = run / "checkpoints" / "checkpoint-4"
    folder.mkdir(parents=True)
    write_weights(str(folder))
    (folder / "manifest.json.tmp").write_text("half")
    worker.save(4, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["step"], list(manifest["files"])) == (4, ["inner/weights.bin"])


def test_a_folder_elsewhere_is_refused(worker, run, tmp_path):
    """A checkpoint that no resume would find is not sealed."""
    with pytest.raises(ValueError, match="checkpoints"):
        worker.save(4, tmp_path)


def test_saving_a_step_again_replaces_it(worker, run):
    """A resumed training may pass the same step a second time."""
    worker.save(4, write_weights)
    worker.save(4, lambda folder: write_weights(folder, "newer"))
    assert (run / "checkpoints" / "step-4" / "inner" / "weights.bin").read_text() == "newer"
    assert os.listdir(run / "checkpoints") == ["step-4"]


def test_a_failed_save_leaves_nothing(worker, run):
    """A full disk is not made fuller by half a checkpoint."""

    def fail(folder: str) -> None:
        write_weights(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        worker.save(4, fail)
    assert os.listdir(run / "checkpoints") == []


def test_a_resume_begins_where_the_agent_says(worker, run_of, agent):
    """The agent has proven it; the script is not to look for itself."""
    folder = run_of(checkpoint={"step": 9, "path": "/runs/checkpoints/step-9"})
    (folder / "checkpoints" / "step-10").mkdir(parents=True)
    assert worker.resume_from() == "/runs/checkpoints/step-9"


def test_by_hand_a_resume_begins_at_the_newest_that_was_sealed(worker, tmp_path, monkeypatch):
    """What is torn, hidden or none of ours is passed over."""
    monkeypatch.chdir(tmp_path)
    assert worker.resume_from() is None
    for step in (9, 10):
        worker.save(step, write_weights)
    checkpoints = tmp_path / "out" / "checkpoints"
    for name, manifest in ((".step-12.new", '{"step": 12}'), ("step-13", '{"step": 1'), ("step-14", "[]")):
        (checkpoints / name).mkdir()
        (checkpoints / name / "manifest.json").write_text(manifest)
    assert worker.resume_from() == str(checkpoints / "step-10")


def test_resume_counts_as_consumed_even_with_nothing_to_resume(worker, run, agent):
    """A script that asks can be started again, whether or not there was a checkpoint."""
    assert worker.resume_from() is None
    assert agent.events(1)[0]["values"] == {"knobs": ["resume"]}


def dues(worker, steps):
    return [step for step in range(1, steps + 1) if worker.due(step)]


@pytest.mark.parametrize(
    ("cadence", "expected"),
    [
        ({"save_every_steps": 4}, [4, 8, 10]),
        ({"save_every_steps": None}, []),
        ({"save_every_steps": None, "save_every_minutes": 1e-9}, list(range(1, 11))),
        ({"save_every_steps": None, "save_every_minutes": 60.0}, [10]),
        ({"save_every_steps": 5, "steps": None}, [5, 10]),
    ],
)
def test_a_checkpoint_is_due_by_steps_by_minutes_and_at_the_end(worker, run_of, cadence, expected):
    """A run without a cadence has none, but when it is asked to end."""
    run_of(**{"steps": 10, **cadence})
    assert dues(worker, 10) == expected
    assert not worker.stopping()


def test_sigterm_makes_a_checkpoint_due_and_ends_the_loop(worker, run_of, agent):
    """After the step in progress; the agent gets one event."""
    run_of(save_every_steps=None)
    assert dues(worker, 2) == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert (worker.due(3), worker.stopping()) == (True, True)
    worker.due(4)
    worker.done(4)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    events = agent.events(3)
    assert [event["step"] for event in events if event["kind"] == "stopping"] == [3]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_ends_by_sigterm(worker, run_of):
    """Whoever made it counts on that: a pool, a loader."""
    run_of()
    worker.due(1)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"!")
        signal.pause()
        os._exit(0)
    assert os.read(ready, 1) == b"!"
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    os.close(ready)
    os.close(tell)


def test_a_script_s_own_answer_to_sigterm_stays(worker, run_of, monkeypatch):
    """It knows better what is to be done."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(True))
    try:
        run_of()
        worker.due(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (heard, worker.due(2), worker.stopping()) == ([True], False, False)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_manifest_says_what_a_resume_needs_to_know(worker, run_of):
    """Where in the data it is, by how many ranks and in which precision, and how good it was."""
    folder = run_of(run="1121-sft-ab12") / "checkpoints"
    worker.log(10, eval_loss=0.5)
    worker.save(10, write_weights, epoch=0.25)
    manifest = json.loads((folder / "step-10" / "manifest.json").read_text())
    del manifest["files"]
    data = {"examples": 640, "epoch": 0.25}
    assert manifest == {
        "version": 1, "run": "1121-sft-ab12", "attempt": 2, "folder": None, "step": 10, "world_size": 1, "precision": "bf16",
        "data": data, "eval_loss": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "kept"),
    [
        ({}, [30, 40]),
        ({10: 0.5, 20: 0.6, 30: 0.7}, [10, 30, 40]),
        ({10: 0.5, 20: 0.4, 40: 0.3}, [30, 40]),
        ({10: float("nan"), 20: 0.4}, [20, 30, 40]),
    ],
)
def test_the_last_ones_are_kept_and_the_best(worker, run_of, losses, kept):
    """A loss that is not finite does not make a checkpoint the best."""
    folder = run_of(keep_checkpoints=2) / "checkpoints"
    (folder / "logs").mkdir(parents=True)
    for step in (10, 20, 30, 40):
        if step in losses:
            worker.log(step, eval_loss=losses[step])
        worker.save(step, write_weights)
    assert {path.name for path in folder.iterdir()} == {"logs", *(f"step-{step}" for step in kept)}
    rated = {step: loss for step, loss in losses.items() if step in kept and math.isfinite(loss)}
    best = min(rated, key=rated.get, default=None)
    found = worker.best()
    assert found == (None if best is None else (str(folder / f"step-{best}"), best, losses[best]))


def test_with_none_kept_the_old_one_goes_before_the_new_one_is_written(worker, run_of):
    """The best too. What fails then leaves none; of a folder that is written already, the old one goes after it."""
    folder = run_of(keep_checkpoints=0) / "checkpoints"
    seen = []

    def write(path):
        seen.append({one.name for one in folder.iterdir() if not one.name.startswith(".")})
        write_weights(path)

    for step in (10, 20):
        worker.log(step, eval_loss=step / 10)
        worker.save(step, write)
    assert seen == [set(), set()]
    assert [path.name for path in folder.iterdir()] == ["step-20"]
    own = folder / "checkpoint-30"
    own.mkdir()
    write_weights(str(own))
    worker.save(30, own)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-30"]

    def fail(_path):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        worker.save(40, fail)
    assert list(folder.iterdir()) == []


def test_only_rank_zero_saves(worker, run, monkeypatch):
    """Two ranks do not write one checkpoint."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    worker.save(10, write_weights)
    assert not (run / "checkpoints").exists()


def test_training_arguments_follow_the_plan(worker, run, agent):
    """Precision, split, steps and workers become Trainer's keywords; the script's own win."""
    keywords = worker.training_arguments(learning_rate=1e-3, seed=1)
    expected = {
        "output_dir": str(run / "checkpoints"),
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "max_steps": 300,
        "bf16": True,
        "fp16": False,
        "use_cpu": True,
        "save_strategy": "no",
        "dataloader_num_workers": 2,
        "learning_rate": 1e-3,
        "seed": 1,
        "data_seed": 7,
        "optim": "adamw_torch",
        "logging_nan_inf_filter": False,
    }
    assert keywords == {**keywords, **expected}
    assert "tf32" not in keywords
    assert agent.events(1)[0]["values"] == {
        "knobs": ["precision", "split", "steps", "loaders", "activation_checkpointing"]
    }


def test_a_keyword_of_the_script_keeps_its_knob_unconsumed(worker, run, agent):
    """A script that hard-codes fp16 is not mended by another precision, and the agent must know."""
    worker.training_arguments(fp16=True, bf16=False, max_steps=5)
    assert agent.events(1)[0]["values"] == {"knobs": ["split", "loaders", "activation_checkpointing"]}


@pytest.mark.training
def test_trainer_takes_every_keyword(worker, run):
    """The names are those of the installed transformers."""
    transformers = pytest.importorskip("transformers", reason="the training libraries are not installed")
    arguments = transformers.TrainingArguments(**worker.training_arguments())
    assert arguments.bf16
    assert arguments.include_num_input_tokens_seen == "non_padding"


@pytest.mark.training
def test_prepare_upcasts_what_is_trainable_and_nothing_else(worker, run):
    """A half-precision trainable becomes fp32 in place, a frozen weight stays as it is."""
    torch = pytest.importorskip("torch", reason="the training libraries are not installed")
    model = torch.nn.Linear(2, 2).bfloat16()
    model.bias.requires_grad_(False)
    weight = model.weight
    assert worker.prepare(model) is model
    assert model.weight is weight
    assert (model.weight.dtype, model.bias.dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.training
def test_prepare_refuses_a_model_with_nothing_to_train(worker, run):
    """A training that cannot learn ends before it begins."""
    torch = pytest.importorskip("torch", reason="the training libraries are not installed")
    with pytest.raises(RuntimeError, match="trainable"):
        worker.prepare(torch.nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.training
def test_accelerator_follows_the_plan(worker, run, agent):
    """Precision and accumulation become Accelerator's; the micro-batch stays the script's to read."""
    state = pytest.importorskip("accelerate.state", reason="the training libraries are not installed")
    accelerator = worker.accelerator()
    found = (accelerator.mixed_precision, accelerator.gradient_accumulation_steps)
    state.AcceleratorState._reset_state(True)  # it is one for the whole process, and other tests want theirs
    assert found == ("bf16", 4)
    assert agent.events(1)[0]["values"] == {"knobs": ["precision"]}


@pytest.mark.training
def test_the_callback_reports_steps_without_running_averages(worker, run, agent):
    """A step's line keeps what is of that step and adds its speed; the summary keeps its totals."""
    transformers = pytest.importorskip("transformers", reason="the training libraries are not installed")
    callback = worker.trainer_callback()
    state = transformers.TrainerState(global_step=0, max_steps=20, is_world_process_zero=True)
    callback.on_train_begin(SimpleNamespace(fp16=False, bf16=True), state, None)
    state.global_step, state.num_input_tokens_seen = 10, 1000
    logs = {"loss": float("nan"), "num_input_tokens_seen": 1000, "train_tokens_per_second": 1.0}
    callback.on_log(None, state, None, logs=logs)
    callback.on_log(None, state, None, logs={"train_loss": 2.0, "train_runtime": 1.0})
    held, begin, line, summary = agent.events(4)
    assert held["values"] == {"knobs": ["checkpoints"]}  # every complete checkpoint is sealed
    assert begin["values"] == {"step": 0, "steps": 20}
    assert line["values"].keys() == {"loss", "tokens_per_s"}
    assert line["values"]["loss"] == "nan"
    assert summary["values"] == {"train_loss": 2.0, "train_runtime": 1.0}


@pytest.mark.training
def test_a_script_that_knows_its_tokens_spares_trainer_the_count(worker, run, agent):
    """Trainer asks the device after each micro-batch."""
    transformers = pytest.importorskip("transformers", reason="the training libraries are not installed")
    asked = []
    callback = worker.trainer_callback(tokens=lambda step: asked.append(step) or 100)
    state = transformers.TrainerState(global_step=0, max_steps=20, is_world_process_zero=True)
    control = SimpleNamespace(should_save=False)
    callback.on_train_begin(SimpleNamespace(fp16=False, bf16=True), state, None)
    for step in (1, 2):
        state.global_step = step
        callback.on_step_end(None, state, control)
    callback.on_log(None, state, None, logs={"loss": 1.0})
    assert asked == [1, 2]
    (line,) = [event for event in agent.events(3) if event["kind"] == "metric"]
    assert line["values"].keys() == {"loss", "tokens_per_s"}


@pytest.mark.parametrize(
    ("cards", "seen"), [("GPU-a,GPU-b,GPU-c", ["GPU-b", "0", "1"]), ("GPU-b", None), (None, [None, "1", "1"])]
)
def test_a_rank_sees_its_own_card_alone(tmp_path, cards, seen):
    """As number 0, under any torchrun: older ones show each rank all cards. A newer one has chosen already."""
    local_rank = "0" if seen is None else "1"
    variables = {"PYTHONPATH": str(WORKER), "RANK": "1", "LOCAL_RANK": local_rank}
    if cards is not None:
        variables["CUDA_VISIBLE_DEVICES"] = cards
    (tmp_path / "train.py").write_text(
        "import json, os\n"
        "print(json.dumps([os.environ.get(name) for name in ('CUDA_VISIBLE_DEVICES', 'LOCAL_RANK', 'RANK')]))"
    )
    words = [sys.executable, "-m", "launcher_worker", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == (seen or ["GPU-b", "0", "1"])


# a run that has gone on


def numbered(out, number, monkeypatch):
    """The attempt's record in a numbered folder, as in a run."""
    folder = out / "record" / f"{number:04}"
    folder.mkdir(parents=True)
    values = json.loads((out / "attempt.json").read_text())
    (folder / "attempt.json").write_text(json.dumps({**values, "folder": number}))
    monkeypatch.setenv("LAUNCH_ATTEMPT", str(folder))
    return folder


def test_nothing_is_sealed_or_removed_once_the_run_has_gone_on(worker, run_of, monkeypatch):
    """The look comes last, when all files are written: their folder stays without a name and without a seal."""
    out = run_of(run="1121-sft-ab12", keep_checkpoints=1)
    attempt = numbered(out, 2, monkeypatch)
    worker.save(10, write_weights)
    manifest = json.loads((out / "checkpoints" / "step-10" / "manifest.json").read_text())
    assert manifest["folder"] == 2

    def write_meanwhile(folder):
        write_weights(folder)
        attempt.with_name("0003").mkdir()

    with pytest.raises(worker.SupersededError, match="continues in 0003"):
        worker.save(20, write_meanwhile)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-10"]
    own = out / "checkpoints" / "checkpoint-30"
    own.mkdir()
    write_weights(str(own))
    with pytest.raises(worker.SupersededError):
        worker.save(30, own)
    assert not (own / "manifest.json").exists()


def test_a_late_seal_of_an_earlier_attempt_is_neither_the_best_nor_kept(worker, run_of, monkeypatch):
    """It was sealed after this attempt had begun, by its own record."""
    out = run_of(run="1121-sft-ab12", keep_checkpoints=1)
    attempt = numbered(out, 3, monkeypatch)

    def seal_before(step, eval_loss):
        folder = out / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        told = {"run": "1121-sft-ab12", "folder": 2, "step": step, "eval_loss": eval_loss, "files": {}}
        (folder / "manifest.json").write_text(json.dumps(told))
        return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()

    known = seal_before(10, 0.5)
    seal_before(12, 0.1)
    (attempt / "sealed.json").write_text(json.dumps({"manifests": [known]}))
    assert worker.best().step == 10
    worker.log(20, eval_loss=0.4)
    worker.save(20, write_weights)
    assert worker.best().step == 20
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-12", "step-20"]


@pytest.mark.training
def test_with_none_kept_a_trainer_s_old_checkpoint_goes_before_it_saves_too(run_of, llama, train):
    """When Trainer begins to write, no whole one is there any more."""
    transformers = pytest.importorskip("transformers", reason="the training libraries are not installed")
    folder = run_of(keep_checkpoints=0) / "checkpoints"
    seen = []

    class Saving(transformers.Trainer):
        def _save_checkpoint(self, *words, **more):
            seen.append([path.parent.name for path in folder.glob("*/manifest.json")])
            super()._save_checkpoint(*words, **more)

    train(llama(), trainer=Saving, save_strategy="steps", save_steps=4, bf16=False, fp16=False)
    assert seen == [[], [], []]
    assert [path.parent.name for path in folder.glob("*/manifest.json")] == ["checkpoint-12"]
