"""The worker in a run: a fresh copy of the package, a real Unix socket and a real attempt.json."""

import functools
import importlib
import json
import os
import socket
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType

import pytest

WORKER = Path(__file__).parents[2] / "launcher" / "worker"


@pytest.fixture
def worker(monkeypatch):
    """Load a fresh copy of the package, outside a run."""
    for name in ("LAUNCH_ATTEMPT", "LAUNCH_SOCKET", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # the worker sets it, and other tests want theirs
    monkeypatch.syspath_prepend(str(WORKER))
    replaced = take_out_modules()
    package = importlib.import_module("launcher_worker")
    yield package
    package.channel.process_channel.close()
    package.pace.process_pace.leave()
    take_out_modules()
    sys.modules.update(replaced)


def take_out_modules() -> dict[str, ModuleType]:
    """Remove the package and its modules from those loaded, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == "launcher_worker"]
    return {name: sys.modules.pop(name) for name in names}


class Agent:
    """The agent's end of the socket: what each connection sent."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections: list[list[dict]] = []
        self._closing = False
        self._news = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()[0]
            lines: list[dict] = []
            with self._news:
                if self._closing:
                    connection.close()
                    return
                self.connections.append(lines)
            reader = threading.Thread(target=self._read, args=(connection, lines))
            reader.start()
            self._threads.append(reader)

    def _read(self, connection: socket.socket, lines: list[dict]) -> None:
        with connection, connection.makefile(encoding="ascii") as stream:
            for line in stream:
                with self._news:
                    lines.append(json.loads(line))
                    self._news.notify_all()

    def events(self, count: int) -> list[dict]:
        """Wait until `count` events came, over any connection, and give them."""
        with self._news:
            arrived = self._news.wait_for(lambda: sum(map(len, self.connections)) >= count, timeout=10)
            assert arrived, self.connections
            return [event for lines in self.connections for event in lines]

    def first(self, kind: str, name: str = "") -> dict:
        """Wait until an event of a kind came, with a value of this name, and give it."""

        def find() -> dict | None:
            events = (event for lines in self.connections for event in lines)
            fitting = (one for one in events if one["kind"] == kind and (not name or name in one["values"]))
            return next(fitting, None)

        with self._news:
            assert self._news.wait_for(find, timeout=10), (kind, name, self.connections)
            return find()

    def close(self) -> None:
        """Stop listening; a last connection wakes the thread that accepts."""
        with self._news:
            self._closing = True
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(self.address)
        self._threads[0].join(10)
        self._listener.close()


@pytest.fixture
def agent():
    """Listen on a short path, as the real agent does."""
    with tempfile.TemporaryDirectory(prefix="lw") as folder:
        agent = Agent(os.path.join(folder, "s"))
        yield agent
        agent.close()


def attempt(folder: Path, **changes) -> dict:
    values = {
        "version": 1,
        "run": "1121-sft-ab12",
        "kind": "attempt",
        "attempt": 2,
        "rung": 0,
        "precision": {
            "mode": "bf16",
            "device": "cpu",
            "base_dtype": "bfloat16",
            "trainable_dtype": "float32",
            "autocast_dtype": "bfloat16",
            "scaler": False,
            "tf32": False,
            "adam_eps": 1e-8,
            "why": "capability 8.0",
            "unknown": 1,
        },
        "split": {"global_batch": 64, "ranks": 1, "micro_batch": 16, "accumulation": 4},
        "steps": 300,
        "seed": 7,
        "loader_workers": 2,
        "save_every_steps": 100,
        "method": "lora",
        "model": "demo",
        "data": {"train": "demo"},
        "settings": {"learning_rate": 0.005},
        "folders": {
            name: str(folder / name) for name in ("run", "code", "artifacts", "checkpoints", "cache")
        },
        "unknown": {},
    }
    values.update(changes)
    return values


@pytest.fixture
def run_of(worker, agent, tmp_path, monkeypatch):
    """Put the worker into a run of an attempt with these changes, and give the attempt's folder.

    A card's precision is rehearsed, for no test here has a card.
    """

    def put(mode: str = "", of_precision: dict | None = None, **changes) -> Path:
        if mode:
            changes["precision"] = precision(mode, **(of_precision or {}))
            changes.setdefault("rehearsed", changes["precision"]["device"] != "cpu")
        (tmp_path / "attempt.json").write_text(json.dumps(attempt(tmp_path, **changes)))
        monkeypatch.setenv("LAUNCH_ATTEMPT", str(tmp_path))
        monkeypatch.setenv("LAUNCH_SOCKET", agent.address)
        return tmp_path

    return put


@pytest.fixture
def run(run_of):
    """Put the worker into a run, and give the attempt's folder."""
    return run_of()


def precision(mode: str, **changes) -> dict:
    """Give the precision of an attempt by its mode, as the ladder has it for a LoRA."""
    half = {"bf16": "bfloat16", "fp16": "float16"}.get(mode.partition("-")[0])
    is_native, is_narrow = mode == "fp16-native", mode in ("fp16-native", "bf16-weights")
    capability = {"fp16": "7.5", "fp16-native": "7.5", "bf16-weights": "8.0"}.get(mode)
    return {
        "mode": mode,
        "device": "cuda" if capability else "cpu",
        "capability": capability,
        "base_dtype": half or "float32",
        "trainable_dtype": half if is_narrow else "float32",
        "autocast_dtype": None if is_narrow else half,
        "scaler": mode == "fp16",
        "tf32": False,
        "adam_eps": 1e-4 if is_native else 1e-8,
        "attention": "sdpa",
        "compile": False,
        "why": "a test",
        **changes,
    }


@pytest.fixture
def torch(monkeypatch):
    """Give torch, and undo at the end what a worker has hooked into it and its kin."""
    torch = pytest.importorskip("torch", reason="the training libraries are not installed")
    accelerate = pytest.importorskip("accelerate", reason="the training libraries are not installed")
    sdpa = pytest.importorskip("transformers.integrations.sdpa_attention")
    for owner, name in (
        (torch.nn.Module, "_apply"),
        (torch.amp.GradScaler, "step"),
        (torch.amp.GradScaler, "update"),
        (accelerate.Accelerator, "__init__"),
        (sdpa, "use_gqa_in_sdpa"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    yield torch
    hooks = sys.modules["torch.optim.optimizer"]  # torch.optim keeps no name of it
    hooks._global_optimizer_pre_hooks.clear()
    hooks._global_optimizer_post_hooks.clear()
    accelerate.state.AcceleratorState._reset_state(True)  # it is one for the whole process


@pytest.fixture
def llama(torch):
    """Make a tiny Llama with grouped heads from a seed; `poison` may change the output of its n-th training step."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(dtype="float32", seed=0, poison=None, **shape):
        torch.manual_seed(seed)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = LlamaConfig(**{"vocab_size": 64, "num_key_value_heads": 2, **sizes, **shape})
        model = LlamaForCausalLM(config).to(getattr(torch, dtype))
        if poison is not None:
            plain, calls = model.forward, []

            @functools.wraps(plain)
            def forward(*args, **kwargs):
                output = plain(*args, **kwargs)
                if model.training:
                    calls.append(1)
                    output.loss = poison(output.loss, len(calls))
                return output

            model.forward = forward
        return model

    return make


@pytest.fixture
def lora():
    """Put a LoRA on a model."""
    peft = pytest.importorskip("peft", reason="the training libraries are not installed")

    def put(model, **own):
        settings = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **own}
        return peft.get_peft_model(model, peft.LoraConfig(**settings))

    return put


@pytest.fixture
def rows(torch):
    """Give examples that can be learned: counting up from somewhere."""
    dice = torch.Generator().manual_seed(0)
    starts = torch.randint(0, 32, (64,), generator=dice)
    return [{"input_ids": one, "labels": one} for one in (start + torch.arange(12) for start in starts)]


@pytest.fixture
def train(worker, rows):
    """Train with a Trainer as the plan says, after what the worker prepared, and give the Trainer."""
    from transformers import Trainer, TrainingArguments

    def run(model, *, optimizers=(None, None), callbacks=(), trainer=Trainer, **own):
        keywords = {"learning_rate": 1e-3, "max_steps": 12, "lr_scheduler_type": "constant", **own}
        keywords.setdefault("per_device_train_batch_size", 4)
        keywords.setdefault("gradient_accumulation_steps", 1)
        keywords.setdefault("dataloader_num_workers", 0)
        keywords.setdefault("logging_strategy", "no")
        arguments = TrainingArguments(**worker.training_arguments(**keywords))
        watchers = [worker.trainer_callback(), *callbacks]
        one = trainer(model, arguments, train_dataset=rows, callbacks=watchers, optimizers=optimizers)
        one.train()
        return one

    return run
