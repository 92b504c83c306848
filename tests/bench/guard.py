"""What guard, start-up hook and observation cost a training together: steps with them and without them, in turn.

    python tests/bench/guard.py [WHAT]    # a line of JSON a training: LoRA, full, LoRA-with-Trainer

The measure is CPU time, for other programs share the cores. It is taken twice, each time in a process of its own:

    narrow    a model with as many tensors and steps of few milliseconds. Every other step has all that launcher puts into
              torch and Trainer taken out. `paired_s` is the median difference of neighbouring steps, and holds what
              launcher slows down elsewhere; `low_s` and `high_s` hold it in 90 of 100 samples of the same pairs.
    wide      a model of 134 million parameters and a batch of 64 tokens, the hardest case. `inside_s` is what clocks
              around our functions show in a step.

What launcher does in a step hardly depends on the width, so `share` is the larger of both over the wide model's step. A
difference of two steps of the wide model is no measure: it varies by 2 %. The first steps, at which the observation looks
closely, do not count: `first_s` is what they took more, once.

On a card (`make gpu`) the clock is the wall's, and each step is waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launcher" / "worker"))

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, trainer

FIRST_STEPS = 4
PAIRS = {"narrow": 100, "wide": 4}
RESAMPLES = 1000
SIZES = {
    "narrow": {"vocab_size": 256, "hidden_size": 96, "intermediate_size": 256},
    "wide": {"vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2048},
}
TRAININGS = ("LoRA", "full", "LoRA-with-Trainer")
DRAIN = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(flush=True)
connection = listener.accept()[0]
while connection.recv(65536):
    pass
"""
_OPTIMIZERS = sys.modules["torch.optim.optimizer"]  # torch.optim keeps no name of it
_HOOKS = (_OPTIMIZERS._global_optimizer_pre_hooks, _OPTIMIZERS._global_optimizer_post_hooks)
_METHODS = (
    (torch.nn.Module, "_apply"),
    (torch.amp.GradScaler, "step"),
    (torch.amp.GradScaler, "update"),
    (torch.amp.GradScaler, "scale"),
    (torch.amp.autocast_mode.autocast, "__enter__"),
    (torch.Tensor, "backward"),
)
PLAIN = {(owner, name): vars(owner)[name] for owner, name in _METHODS}


class Setup(NamedTuple):
    """A training that is measured: which, the model's width, and a step's batch; on a card with bf16 under its autocast."""

    what: str
    width: str
    pairs: int
    device: str = "cpu"
    rows: int = 1
    tokens: int = 64

    @property
    def is_half(self) -> bool:
        """Whether it computes in bf16."""
        return self.device == "cuda" and torch.cuda.get_device_capability() >= (8, 0)

    def clock(self) -> float:
        """Return the time inside of a step, in seconds: of this process's CPU, or on a card that of the wall."""
        return time.process_time() if self.device == "cpu" else time.perf_counter()

    def clock_between(self) -> float:
        """Return the time between two steps, when a card has done what it was asked."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        return self.clock()

    def batch(self, rows: int, vocabulary: int) -> torch.Tensor:
        """Draw that many rows of tokens."""
        return torch.randint(0, vocabulary, (rows, self.tokens), device=self.device)


class Spent:
    """The time inside our functions since the last look."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.seconds = 0.0
        self._is_inside = False

    def clock(self, owner: Any, *names: str) -> None:
        """Count the time of an object's methods; one that another calls counts once."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return function(*args, **kwargs)
            self._is_inside, began = True, self.setup.clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._is_inside = False
                self.seconds += self.setup.clock() - began

        return timed


class Switch:
    """All that launcher has put into torch, a model and a Trainer, to take out and put back."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._ours = {(owner, name): vars(owner)[name] for owner, name in _METHODS}
        self._hooks = [dict(hooks) for hooks in _HOOKS]
        self._model = model
        self._forward_hooks = dict(model._forward_hooks)
        self.handler: Any = None
        self.callbacks: tuple[Any, ...] = ()

    def turn(self, is_on: bool) -> None:
        """Put everything in, or take it out."""
        for (owner, name), method in (self._ours if is_on else PLAIN).items():
            setattr(owner, name, method)
        for hooks, ours in zip(_HOOKS, self._hooks, strict=True):
            _fill(hooks, ours if is_on else {})
        _fill(self._model._forward_hooks, self._forward_hooks if is_on else {})
        if self.handler is not None:
            others = [one for one in self.handler.callbacks if one not in self.callbacks]
            self.handler.callbacks = [*others, *self.callbacks] if is_on else others


def _fill(mapping: Any, values: dict[Any, Any]) -> None:
    mapping.clear()
    mapping.update(values)


def is_on(step: int) -> bool:
    """Whether a step after the first ones has launcher in it: on, off, off, on, and so forth."""
    return step % 4 in (0, 3)


class Meter:
    """Switches before each step, and notes what the step took and what of it was inside."""

    def __init__(self, switch: Switch, spent: Spent) -> None:
        self._switch, self._spent = switch, spent
        self._step = -FIRST_STEPS
        self._clock = spent.setup.clock_between
        self._began = self._clock()
        self.first_s = 0.0
        self.took: list[float] = []
        self.inside: list[float] = []

    def begin(self) -> None:
        """Note the step that ends here, and prepare the next."""
        took, inside = self._clock() - self._began, self._spent.take()
        if self._step > 0:
            self.took.append(took)
            self.inside.append(inside)
        else:
            self.first_s += inside
        self._switch.turn(self._step < 0 or is_on(self._step))
        self._step += 1
        self._began = self._clock()

    def figures(self) -> dict[str, float]:
        """Return what a step took, and launcher in it, in seconds."""
        pairs = [
            (self.took[at], self.took[at + 1]) if is_on(at) else (self.took[at + 1], self.took[at])
            for at in range(0, len(self.took) - 1, 2)
        ]
        differences = [on - off for on, off in pairs]
        step_s = statistics.median(off for _, off in pairs)
        chance = random.Random(0)
        medians = sorted(
            statistics.median(chance.choices(differences, k=len(differences))) for _ in range(RESAMPLES)
        )
        return {
            "step_s": step_s,
            "paired_s": statistics.median(differences),
            "low_s": medians[RESAMPLES // 20],
            "high_s": medians[-RESAMPLES // 20],
            "inside_s": statistics.median(one for at, one in enumerate(self.inside) if is_on(at)),
            "first_s": self.first_s,
        }


def steps_of(model: Any, meter: Meter, steps: int, setup: Setup) -> None:
    """Train in a plain loop."""
    trained = [part for part in model.parameters() if part.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=True)
    model.train()
    for _ in range(steps):
        meter.begin()
        tokens = setup.batch(setup.rows, model.config.vocab_size)
        with torch.autocast(setup.device, torch.bfloat16) if setup.is_half else contextlib.nullcontext():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    meter.begin()


def steps_of_trainer(model: Any, meter: Meter, steps: int, switch: Switch, spent: Spent) -> None:
    """Train in a Trainer that has the worker's callback, and the hook's."""
    import launcher_worker as worker
    from launcher_worker import observer

    setup = spent.setup

    class Steps(TrainerCallback):
        def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
            meter.begin()

    observer.observe_trainer(trainer)
    ours = worker.trainer_callback()
    spent.clock(ours, "on_step_end", "on_substep_end", "on_log")
    drawn = setup.batch(400 * setup.rows, model.config.vocab_size).cpu()
    rows = [{"input_ids": row, "labels": row} for row in drawn]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=steps + 1, per_device_train_batch_size=setup.rows,
            use_cpu=setup.device == "cpu", bf16=setup.is_half,
            learning_rate=1e-4, logging_steps=10, save_strategy="no", report_to="none", disable_tqdm=True,
            optim="adamw_torch", dataloader_pin_memory=False,
        )  # fmt: skip
        training = Trainer(model, arguments, train_dataset=rows, callbacks=[Steps(), ours])
        switch.handler = training.callback_handler
        hook = next(one for one in switch.handler.callbacks if isinstance(one, observer.Observer))
        switch.callbacks = (ours, hook)
        training.train()


def measure(setup: Setup) -> dict[str, Any]:
    """Measure one training in this process."""
    import launcher_worker as worker
    from launcher_worker.precision import precision_watch

    spent = Spent(setup)
    spent.clock(precision_watch.PrecisionWatch, "see_autocast", "see_scaler", "see_backward", "see_step")
    guard = worker.guard.process_guard
    spent.clock(guard, "see_forward", "before_step", "after_step", "after_update", "tick", "hear")
    precision_watch.watch_torch(torch)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: Any = LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=12, num_attention_heads=12, **SIZES[setup.width])
    )
    parameters = sum(one.numel() for one in model.parameters())
    if setup.what != "full":
        model = get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
    model = worker.prepare(model.to(setup.device))
    switch = Switch(model)
    meter = Meter(switch, spent)
    steps = FIRST_STEPS + 2 * setup.pairs + 1
    if setup.what == "LoRA-with-Trainer":
        steps_of_trainer(model, meter, steps, switch, spent)
    else:
        steps_of(model, meter, steps, setup)
    return {"what": setup.what, "parameters": parameters, **meter.figures()}


def in_a_process(setup: Setup) -> dict[str, Any]:
    """Measure a training in a process of its own, which reports to a socket as in a run."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        address = str(Path(folder) / "s")
        drain = subprocess.Popen([sys.executable, "-c", DRAIN, address], stdout=subprocess.PIPE)
        assert drain.stdout is not None
        drain.stdout.readline()
        env = {**os.environ, "LAUNCH_SOCKET": address, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, __file__, "--here", json.dumps(setup)]
        try:
            done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
        finally:
            drain.kill()
            drain.communicate()
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures


def measured(trainings: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Measure trainings by name."""
    for what in trainings:
        narrow, wide = (in_a_process(Setup(what, width, PAIRS[width])) for width in ("narrow", "wide"))
        paired = {name: narrow[name] for name in ("paired_s", "low_s", "high_s")}
        share = max(narrow["paired_s"], wide["inside_s"]) / wide["step_s"]
        yield {**wide, **paired, "share": share}


def main() -> None:
    """Measure a LoRA, which has many small trainables, a full fine-tune, which has large ones, and a LoRA in a Trainer."""
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(measure(Setup(*json.loads(sys.argv[2])))))
        return
    for figures in measured(sys.argv[1:] or TRAININGS):
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
