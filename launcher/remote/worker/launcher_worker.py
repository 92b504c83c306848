"""What a training script says to its run, and what the run says to it.

    import launcher_worker as worker

    plan = worker.knobs()                # the values in force: precision, split, steps, ...
    model = worker.prepare(model)        # no half-precision trainable reaches an optimizer
    args = TrainingArguments(**worker.training_arguments(learning_rate=2e-4))
    trainer = Trainer(model, args, callbacks=[worker.trainer_callback()], ...)
    trainer.train(resume_from_checkpoint=worker.resume_from())
    worker.done(trainer.state.global_step)  # last: everything worth keeping is on disk

In a run two variables are set: `LAUNCH_ATTEMPT`, the folder whose `attempt.json` is the only file read here,
and `LAUNCH_SOCKET`, the agent's Unix stream socket. Each process of the training opens one connection to it
and sends one JSON line an event. Without an agent the worker falls silent, and the training goes on.

Outside a run every call does the plain thing, so that a script which imports this module still runs by hand.

A knob counts as consumed once it has been handed out; the agent mends a crash only through consumed knobs.

The module is one file, standard library only when imported, Python 3.8 or later, Linux and macOS. `prepare`,
`training_arguments`, `trainer_callback` and `accelerator` are its torch half and import what they need when
called. It does not send heartbeats, choose a precision, prune checkpoints or retry: that is the agent's part.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import shutil
import socket
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple, Union

__all__ = [
    "Knobs",
    "Peek",
    "Precision",
    "Split",
    "accelerator",
    "begin",
    "done",
    "knobs",
    "log",
    "prepare",
    "progress",
    "resume_from",
    "save",
    "trainer_callback",
    "training_arguments",
]

MANIFEST = "manifest.json"
SEND_TIMEOUT_S = 10.0


# ---- the values in force


@dataclass(frozen=True)
class Precision:
    """One consistent choice of dtypes, autocast and scaler; dtypes are torch's names, such as `bfloat16`."""

    mode: str
    device: str  # cpu, cuda or mps; outside a run "auto": whatever torch finds
    base_dtype: str
    trainable_dtype: str
    autocast_dtype: Optional[str]
    scaler: bool
    tf32: bool
    adam_eps: float
    why: str


@dataclass(frozen=True)
class Split:
    """How a global batch is divided: `ranks * micro_batch * accumulation` examples a step."""

    global_batch: int
    ranks: int
    micro_batch: int
    accumulation: int


@dataclass(frozen=True)
class Peek:
    """The knobs, for a look that consumes none: to print them, or to use what does not hang on them."""

    precision: Precision
    split: Split
    steps: Optional[int]
    loader_workers: int


class Knobs:
    """The values in force for this attempt.

    `precision`, `split`, `steps` and `loader_workers` are knobs: reading one tells the agent that the script
    uses it. The others are plain attributes; folders are absolute paths.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        folders = values["folders"]
        self.run: Optional[str] = values["run"]
        self.attempt: int = values["attempt"]
        self.seed: int = values["seed"]
        self.method: str = values["method"]
        self.model: Optional[str] = values["model"]
        self.data: Dict[str, str] = dict(values["data"])
        self.settings: Dict[str, Any] = dict(values["settings"])
        self.save_every_steps: Optional[int] = values["save_every_steps"]
        self.artifacts: str = folders["artifacts"]
        self.checkpoints: str = folders["checkpoints"]
        self.cache: str = folders["cache"]
        self.peek = Peek(
            precision=Precision(**_known(Precision, values["precision"])),
            split=Split(**_known(Split, values["split"])),
            steps=values["steps"],
            loader_workers=values["loader_workers"],
        )
        self._consumed: Set[str] = set()

    @property
    def precision(self) -> Precision:
        """Which dtypes, autocast and scaler to use."""
        self.consume("precision")
        return self.peek.precision

    @property
    def split(self) -> Split:
        """How many examples a micro-batch holds, and how many micro-batches make a step."""
        self.consume("split")
        return self.peek.split

    @property
    def steps(self) -> Optional[int]:
        """After how many steps the training ends, or None where the script decides."""
        self.consume("steps")
        return self.peek.steps

    @property
    def loader_workers(self) -> int:
        """How many processes load data."""
        self.consume("loaders")
        return self.peek.loader_workers

    def consume(self, *names: str) -> None:
        """Tell the agent, once, that the script uses these of `precision split steps loaders resume`."""
        new = [name for name in names if name not in self._consumed]
        if new:
            self._consumed.update(new)
            _send("consumed", values={"knobs": new})


def knobs() -> Knobs:
    """Give the values in force: those of the attempt, or plain defaults outside a run.

    Raises RuntimeError if the attempt's file cannot be read.
    """
    return _read_knobs(os.environ.get("LAUNCH_ATTEMPT"))


@functools.lru_cache(maxsize=None)
def _read_knobs(folder: Optional[str]) -> Knobs:
    if folder is None:
        return Knobs(_plain())
    file = os.path.join(folder, "attempt.json")
    try:
        return Knobs(json.loads(Path(file).read_text(encoding="utf-8")))
    except KeyError as error:
        raise RuntimeError(f"{file} lacks the field {error}") from error
    except (OSError, ValueError, TypeError) as error:
        raise RuntimeError(f"{file} cannot be read: {error}") from error


def _plain() -> Dict[str, Any]:
    """Give the values of a script run by hand, in the form of an attempt.json."""
    out = os.path.abspath("out")
    return {
        "run": None,
        "attempt": 1,
        "seed": 0,
        "method": "lora",
        "model": None,
        "data": {},
        "settings": {},
        "steps": None,
        "save_every_steps": None,
        "loader_workers": 0,
        "precision": {
            "mode": "fp32",
            "device": "auto",
            "base_dtype": "float32",
            "trainable_dtype": "float32",
            "autocast_dtype": None,
            "scaler": False,
            "tf32": False,
            "adam_eps": 1e-8,
            "why": "outside a run: fp32 works everywhere",
        },
        "split": {"global_batch": 8, "ranks": 1, "micro_batch": 8, "accumulation": 1},
        "folders": {
            "artifacts": os.path.join(out, "artifacts"),
            "checkpoints": os.path.join(out, "checkpoints"),
            "cache": os.path.expanduser(os.path.join("~", ".cache", "launch")),
        },
    }


def _known(kind: Any, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Pick the fields that `kind` declares: a newer agent may write more."""
    return {field.name: values[field.name] for field in fields(kind)}


# ---- events


def log(step: int, **values: Any) -> None:
    """Report metrics of a step: numbers (a torch or numpy scalar too), bools and strings.

    Outside a run it prints one readable line. Raises TypeError for any other value.
    """
    metrics = {name: _scalar(name, value) for name, value in values.items()}
    if "LAUNCH_ATTEMPT" in os.environ:
        _send("metric", step=step, values=metrics)
    else:
        words = [f"step {step}"]
        for name, value in metrics.items():
            words.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
        print("  ".join(words), flush=True)


def progress(stage: str, done: int, total: int) -> None:
    """Report how far a long stage is that consists of no training steps, such as generation.

    Outside a run it does nothing.
    """
    _send("progress", values={"stage": stage, "done": done, "total": total})


def begin(step: int, steps: Optional[int]) -> None:
    """Report that training goes on after `step` up to `steps`; `trainer_callback` does it for a Trainer."""
    _send("begin", values={"step": step, "steps": steps})


def done(step: int) -> None:
    """Report completion at the final step. Call it last: all that is worth keeping must be on disk."""
    _send("done", step=step)


def _scalar(name: str, value: Any) -> Union[bool, int, float, str]:
    """Bring a value into strict JSON, where a number that is not finite is the string nan, inf or -inf."""
    if isinstance(value, (bool, int, str)):
        return value
    try:
        number = float(value)
    except TypeError as error:
        raise TypeError(f"{name} is neither a number nor a bool nor a string: {value!r}") from error
    return number if math.isfinite(number) else str(number)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _send(kind: str, step: Optional[int] = None, values: Optional[Mapping[str, Any]] = None) -> None:
    event: Dict[str, Any] = {"kind": kind, "rank": _rank(), "time": time.time()}
    if step is not None:
        event["step"] = int(step)
    if values is not None:
        event["values"] = values
    _channel.send(event)


_encode = json.JSONEncoder(
    allow_nan=False, separators=(",", ":")
).encode  # made once: it is called for every event


class _Channel:
    """One connection of this process to the agent: opened at the first event, mute after the first error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: Optional[socket.socket] = None
        self._mute = False

    def send(self, event: Mapping[str, Any]) -> None:
        """Send one event as one line; without an agent do nothing."""
        line = _encode(event).encode("ascii") + b"\n"
        with self._lock:
            if self._mute:
                return
            try:
                if self._socket is None:
                    address = os.environ.get("LAUNCH_SOCKET")
                    if not address:
                        return
                    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    self._socket.settimeout(SEND_TIMEOUT_S)
                    self._socket.connect(address)
                self._socket.sendall(line)
            except OSError:
                # A week of training is worth more than its curve. Half a line may be out: no second try.
                self._mute = True
                self._close()

    def start_anew(self) -> None:
        """Forget the parent's connection and lock: after a fork two processes would write into one stream."""
        self._close()
        self._lock = threading.Lock()
        self._mute = False

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


_channel = _Channel()
os.register_at_fork(after_in_child=_channel.start_anew)


# ---- checkpoints


def save(step: int, source: Union[str, "os.PathLike[str]", Callable[[str], Any]]) -> None:
    """Seal a checkpoint, so that it counts as whole, and report it.

    `source` is a folder inside the checkpoints folder that is complete already, or a function that writes the
    files into the folder it is given; they appear as `step-N` only once sealed, in place of an older one.
    Only rank 0 does anything, and only there is the function called: gather sharded state before.
    Raises ValueError for a folder elsewhere, and OSError if the disk refuses.
    """
    if _rank() != 0:
        return
    checkpoints = Path(knobs().checkpoints)
    if callable(source):
        folder = _publish(checkpoints, step, source)
    else:
        folder = Path(source)
        if folder.resolve().parent != checkpoints.resolve():
            raise ValueError(f"{folder} is not a folder in {checkpoints}, where checkpoints are looked for")
        _seal(folder, step)
    _sync_folder(checkpoints)
    _send("checkpoint", step=step, values={"path": folder.name})


def resume_from() -> Optional[str]:
    """Give the folder of the newest checkpoint that is whole, or None to start at the beginning.

    Whole means sealed by `save`, and every file still of the size and SHA-256 it had. Others are passed over.
    """
    values = knobs()
    values.consume("resume")
    checkpoints = Path(values.checkpoints)
    folders = [folder for folder in checkpoints.glob("*") if not folder.name.startswith(".")]
    sealed: List[Tuple[int, str, Dict[str, Any]]] = []
    for folder in folders:
        manifest = _manifest(folder)
        if manifest is not None:
            sealed.append((manifest["step"], str(folder), manifest["files"]))
    for _, path, files in sorted(sealed, key=lambda entry: entry[:2], reverse=True):
        if _is_whole(Path(path), files):
            return path
    return None


def _publish(checkpoints: Path, step: int, write: Callable[[str], Any]) -> Path:
    """Let `write` fill a hidden folder, seal it, and only then give it its name."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    final, hidden, older = (
        checkpoints / name.format(step) for name in ("step-{}", ".step-{}.new", ".step-{}.old")
    )
    shutil.rmtree(hidden, ignore_errors=True)  # what a crash left behind
    shutil.rmtree(older, ignore_errors=True)
    hidden.mkdir()
    try:
        write(str(hidden))
        _seal(hidden, step)
        if final.exists():
            final.rename(older)
        hidden.rename(final)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    shutil.rmtree(older, ignore_errors=True)
    return final


def _seal(folder: Path, step: int) -> None:
    """Write the manifest, last and at once: a checkpoint without a matching one does not count."""
    temporary = folder / (MANIFEST + ".tmp")
    files = {}
    inner = [folder]
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            inner.append(path)
        elif path not in (folder / MANIFEST, temporary):
            files[path.relative_to(folder).as_posix()] = _fingerprint(path, sync=True)
    for path in inner:
        _sync_folder(path)
    with open(temporary, "w", encoding="utf-8") as out:
        json.dump({"version": 1, "step": int(step), "files": files}, out, indent=1, allow_nan=False)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, folder / MANIFEST)
    _sync_folder(folder)


def _fingerprint(path: Path, sync: bool = False) -> Dict[str, Any]:
    """Give size (bytes) and SHA-256 of a file, and make sure it is on the disk if `sync`."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb") as file:
        if sync:
            os.fsync(file.fileno())
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
            size += len(block)
    return {"size": size, "sha256": digest.hexdigest()}


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _manifest(folder: Path) -> Optional[Dict[str, Any]]:
    """Read a checkpoint's manifest; None where there is none, or none of ours."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return None
    return manifest if isinstance(manifest.get("step"), int) else None


def _is_whole(folder: Path, files: Mapping[str, Any]) -> bool:
    """Tell whether every file is what the manifest says; sizes first, they cost nothing."""
    try:
        sizes = all((folder / name).stat().st_size == entry["size"] for name, entry in files.items())
        return sizes and all(_fingerprint(folder / name) == entry for name, entry in files.items())
    except (OSError, KeyError, TypeError):
        return False


# ---- the torch half


# The keywords of TrainingArguments that a knob decides: a script that sets one does not consume that knob.
_DECIDES = {
    "precision": {"fp16", "bf16", "tf32"},
    "split": {"per_device_train_batch_size", "gradient_accumulation_steps"},
    "steps": {"max_steps"},
    "loaders": {"dataloader_num_workers"},
}


def training_arguments(**own: Any) -> Dict[str, Any]:
    """Give the plan as keywords for `transformers.TrainingArguments`; `own` keywords are added and win."""
    values = knobs()
    precision, split = values.peek.precision, values.peek.split
    keywords: Dict[str, Any] = {
        "output_dir": values.checkpoints,
        "per_device_train_batch_size": split.micro_batch,
        "gradient_accumulation_steps": split.accumulation,
        "seed": values.seed,
        "data_seed": values.seed,
        "fp16": precision.autocast_dtype == "float16",
        "bf16": precision.autocast_dtype == "bfloat16",
        "use_cpu": precision.device == "cpu",
        "optim": "adamw_torch",  # the fused one, Trainer's default, hides a step that overflowed
        "adam_epsilon": precision.adam_eps,
        "max_grad_norm": 1.0,
        "logging_nan_inf_filter": False,  # True would log a NaN loss as 0.0
        "include_num_input_tokens_seen": "non_padding",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": values.peek.loader_workers,
        "dataloader_pin_memory": precision.device != "cpu",
        "save_strategy": "steps" if values.save_every_steps else "no",
    }
    if values.save_every_steps:
        keywords["save_steps"] = values.save_every_steps
    if values.peek.steps is not None:
        keywords["max_steps"] = values.peek.steps
    if precision.tf32:
        keywords["tf32"] = True  # False is the default, and naming it raises on old cards in some versions
    values.consume(*(knob for knob, names in _DECIDES.items() if not names & own.keys()))
    return {**keywords, **own}


def trainer_callback() -> Any:
    """Give a `transformers.TrainerCallback` that reports the begin and every log line, and seals checkpoints.

    Where Trainer counts tokens, a line of a training step also says how many a second it saw since the last.
    """
    from accelerate import PartialState
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
        """Sends what a Trainer says to the run."""

        def __init__(self) -> None:
            self._tokens = 0
            self._clock_s = 0.0

        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            """Report where training begins and ends."""
            self._tokens, self._clock_s = state.num_input_tokens_seen, time.monotonic()
            if state.is_world_process_zero:
                begin(state.global_step, state.max_steps)

        def on_log(self, _args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
            """Report a line of a training step, an evaluation, or the summary at the end."""
            if not state.is_world_process_zero:
                return
            logs = kwargs["logs"]
            values = {name: value for name, value in logs.items() if isinstance(value, (int, float, str))}
            values.pop("num_input_tokens_seen", None)
            if "loss" in values:
                # Trainer puts averages since the start on every line, too: only the summary keeps them.
                values = {name: value for name, value in values.items() if not name.startswith("train_")}
                values.update(self._speed(state.num_input_tokens_seen))
            log(state.global_step, **values)

        def on_save(self, args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            """Seal the checkpoint, once every rank has written its part."""
            PartialState().wait_for_everyone()
            save(state.global_step, os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))

        def _speed(self, tokens: int) -> Dict[str, float]:
            tokens_before, clock_before_s = self._tokens, self._clock_s
            self._tokens, self._clock_s = tokens, time.monotonic()
            if tokens <= tokens_before or self._clock_s <= clock_before_s:
                return {}
            return {"tokens_per_s": (tokens - tokens_before) / (self._clock_s - clock_before_s)}

    return Reporter()


def prepare(model: Any) -> Any:
    """Make a torch model safe to train at the plan's precision, in place, and give it back.

    Where the plan trains in float32 or scales gradients, trainable half-precision parameters become float32.
    Call it after adapters are added and before an optimizer is built, whose state would keep the old dtype.
    Raises RuntimeError if nothing is trainable.
    """
    import torch

    precision = knobs().peek.precision
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise RuntimeError(
            "nothing in the model is trainable: before prepare(), add an adapter or set requires_grad"
        )
    if precision.scaler or precision.trainable_dtype == "float32":
        for parameter in trainable:
            if parameter.dtype in (torch.float16, torch.bfloat16):
                parameter.data = parameter.data.float()
    if precision.tf32:
        if hasattr(
            torch.backends, "fp32_precision"
        ):  # torch 2.9 and later; not to be mixed with the old switches
            torch.backends.fp32_precision = "tf32"
        else:
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
    return model


def accelerator(**own: Any) -> Any:
    """Make an `accelerate.Accelerator` for the plan's precision and accumulation; `own` keywords win.

    The micro-batch is the script's to read, from `knobs().split`, which is what consumes that knob.
    """
    from accelerate import Accelerator

    values = knobs()
    if "mixed_precision" not in own:
        values.consume("precision")
    precision = values.peek.precision
    keywords: Dict[str, Any] = {
        "mixed_precision": {"float16": "fp16", "bfloat16": "bf16"}.get(precision.autocast_dtype or "", "no"),
        "gradient_accumulation_steps": values.peek.split.accumulation,
        "cpu": precision.device == "cpu",
    }
    return Accelerator(**{**keywords, **own})
