"""What a training script says to its run, and what the run says to it.

    import launcher_worker as worker

    plan = worker.knobs()                # the values in force: precision, split, steps, ...
    model = AutoModelForCausalLM.from_pretrained(name, **worker.model_arguments())
    model = worker.prepare(model)        # after adapters, before an optimizer: dtypes as planned, the guard begins
    args = TrainingArguments(**worker.training_arguments(learning_rate=2e-4))
    trainer = Trainer(model, args, callbacks=[worker.trainer_callback()], ...)
    trainer.train(resume_from_checkpoint=worker.resume_from())
    if not worker.stopping():            # else it was asked to end, and is not done
        worker.done(trainer.state.global_step)  # last: everything worth keeping is on disk

In a run two variables are set: `LAUNCH_ATTEMPT`, the folder whose `attempt.json` is the only file read here,
and `LAUNCH_SOCKET`, the agent's Unix stream socket. Each process of the training opens one connection to it
and sends one JSON line an event. Without an agent the worker falls silent, and the training goes on.

Outside a run every call does the plain thing, so that a script which imports this module still runs by hand.

A knob counts as consumed once it has been handed out; the agent mends a crash only through consumed knobs.

A loop in plain torch takes `with worker.autocast():` and `scaler = worker.scaler()`; one with accelerate takes
`worker.accelerator()`. Both end each step with

    if worker.due(step):                 # every so many steps or minutes, and where the run is asked to end
        worker.save(step, write)
    if worker.stopping():
        sys.exit(0)                      # the next start goes on from there

The guard judges every optimizer step of a prepared model, or of a Trainer with `trainer_callback`: a training
that diverges or does not learn ends with `Tripped` within five steps, and no checkpoint of a bad step is sealed.

The module is one file, standard library only when imported, Python 3.8 or later, Linux and macOS. `prepare`,
`model_arguments`, `training_arguments`, `trainer_callback`, `accelerator`, `autocast` and `scaler` are its torch
half and import what they need when called. It does not choose a precision, nor the checkpoint to go on from, and
retries nothing: that is the agent's part.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import hashlib
import json
import math
import os
import random
import shutil
import signal
import socket
import statistics
import struct
import sys
import threading
import time
import weakref
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

__all__ = [
    "Knobs",
    "Peek",
    "Precision",
    "Split",
    "Tripped",
    "accelerator",
    "autocast",
    "begin",
    "done",
    "due",
    "knobs",
    "log",
    "model_arguments",
    "prepare",
    "progress",
    "resume_from",
    "save",
    "scaler",
    "stopping",
    "trainer_callback",
    "training_arguments",
]

MANIFEST = "manifest.json"
SEND_TIMEOUT_S = 10
BEAT_S = 1.0


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
    capability: Optional[str] = None  # of the card, such as "7.5"; None where there is none
    attention: str = "sdpa"  # transformers' attn_implementation
    compile: bool = False


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
    activation_checkpointing: bool


class Knobs:
    """The values in force for this attempt.

    `precision`, `split`, `steps`, `loader_workers` and `activation_checkpointing` are knobs: reading one tells the
    agent that the script uses it. The others are plain attributes; folders are absolute paths.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        folders = values["folders"]
        self.run: Optional[str] = values["run"]
        self.attempt: int = values["attempt"]
        self.seed: int = values["seed"]
        self.rehearsed: bool = values.get("rehearsed", False)  # a card's plan, run on a CPU
        self.checkpoint: Optional[Dict[str, Any]] = values.get("checkpoint")  # path and step to go on from
        self.method: str = values["method"]
        self.model: Optional[str] = values["model"]
        self.data: Dict[str, str] = dict(values["data"])
        self.settings: Dict[str, Any] = dict(values["settings"])
        self.save_every_steps: Optional[int] = values["save_every_steps"]
        self.save_every_minutes: Optional[float] = values.get("save_every_minutes")
        self.keep_checkpoints: Optional[int] = values.get("keep_checkpoints")  # None keeps all
        self.artifacts: str = folders["artifacts"]
        self.checkpoints: str = folders["checkpoints"]
        self.cache: str = folders["cache"]
        self.peek = Peek(
            precision=Precision(**_known(Precision, values["precision"])),
            split=Split(**_known(Split, values["split"])),
            steps=values["steps"],
            loader_workers=values["loader_workers"],
            activation_checkpointing=values.get("activation_checkpointing", False),
        )
        self.precision_key = _digest({k: v for k, v in values["precision"].items() if k != "why"})
        self._consumed: Set[str] = set()
        self._held: Set[str] = set()
        self._is_announced = False

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

    @property
    def activation_checkpointing(self) -> bool:
        """Whether the backward pass computes activations anew, which saves memory; `prepare` sees to it by itself."""
        self.consume("activation_checkpointing")
        return self.peek.activation_checkpointing

    def consume(self, *names: str) -> None:
        """Tell the agent, once, that the script uses a knob.

        They are `precision split steps loaders activation_checkpointing resume`, and `checkpoints`: whatever is whole
        there is sealed, so that what is not may be removed.
        """
        new = [name for name in names if name not in self._consumed]
        if new:
            self._consumed.update(new)
            _send("consumed", values={"knobs": new})
        if "precision" in new:
            self.announce()

    def hold(self, name: str) -> None:
        """Tell the agent that the script sets this knob itself, at least in part: another value would mend nothing."""
        if name not in self._held:
            self._held.add(name)
            _send("consumed", values={"knobs": [], "held": [name]})

    def announce(self) -> None:
        """Say once, in a run, which precision is in force."""
        if not self._is_announced and self.run is not None and _rank() == 0:
            print(_sentence(self.peek.precision, self.rehearsed), flush=True)
        self._is_announced = True


_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def _sentence(precision: Precision, rehearsed: bool) -> str:
    """Say in one line for people which precision is in force, and why."""
    base = _SHORT.get(precision.base_dtype, precision.base_dtype)
    words = [
        f"{_SHORT[precision.autocast_dtype]} autocast" if precision.autocast_dtype else "no autocast",
        f"over {'a' if base == 'bf16' else 'an'} {base} base,",
        f"{_SHORT.get(precision.trainable_dtype, precision.trainable_dtype)} trainables,",
        f"scaler {'on' if precision.scaler else 'off'}",
    ]
    head = f"precision {precision.mode}{', rehearsed on the CPU' if rehearsed else ''}"
    return f"{head}: {' '.join(words)}   ({precision.why})"


def knobs() -> Knobs:
    """Give the values in force: those of the attempt, or plain defaults outside a run.

    Raises RuntimeError if the attempt's file cannot be read.
    """
    return _read_knobs(os.environ.get("LAUNCH_ATTEMPT"))


@functools.lru_cache(maxsize=None)
def _read_knobs(folder: Optional[str]) -> Knobs:
    if folder is None:
        return Knobs(_plain())
    with contextlib.suppress(OSError, RuntimeError):  # an odd platform: without it a hang tells no stacks
        # Asked for by an agent that sees no step.
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
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
    """Pick the fields that `kind` declares: a newer agent may write more, an older one less than all."""
    return {
        field.name: values[field.name]
        for field in fields(kind)
        if field.name in values or field.default is MISSING
    }


def _digest(value: Any) -> str:
    """Give the SHA-256 of a value's canonical JSON, as the client writes it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


# ---- events


def log(step: int, **values: Any) -> None:
    """Report metrics of a step: numbers (a torch or numpy scalar too), bools and strings.

    Outside a run it prints one readable line. Raises TypeError for any other value.
    """
    metrics = {name: _scalar(name, value) for name, value in values.items()}
    _guard.hear(step, metrics)
    if "eval_loss" in metrics:
        _pace.note_eval_loss(step, metrics["eval_loss"])
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
    _guard.restart(step)
    _send("begin", values={"step": step, "steps": steps})


def done(step: int) -> None:
    """Report completion at the final step. Call it last: all that is worth keeping must be on disk.

    Raises Tripped where the guard did, or where the last steps were bad: that is no success.
    """
    _guard.finish()
    _prepared.clear()  # what is trained no more may be cast
    _pace.leave()
    _send("done", step=step)


def _scalar(name: str, value: Any) -> Union[bool, int, float, str]:
    """Bring a value into strict JSON, where a number that is not finite is the string nan, inf or -inf."""
    if isinstance(value, (bool, int, str)):
        return value
    try:
        # torch warns of one that requires grad
        number = float(value.detach() if hasattr(value, "detach") else value)
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
        self._beat_s = -math.inf

    def beat(self, step: int) -> None:
        """Tell that a step was done, at most once a second: the agent knows a hang by the lack of it."""
        now_s = time.monotonic()
        if now_s - self._beat_s >= BEAT_S:
            self._beat_s = now_s
            _send("beat", step=step)

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
                    # The kernel's own timeout: Python's would ask it before each send whether it may.
                    timeout = struct.pack("ll", SEND_TIMEOUT_S, 0)
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
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


def _forget_parent() -> None:
    """In a forked child: a connection of its own, and SIGTERM ends it, as whoever made it expects."""
    _channel.start_anew()
    _pace.leave()


os.register_at_fork(after_in_child=_forget_parent)


# ---- checkpoints


def due(step: int) -> bool:
    """Tell, once after each step, whether to save a checkpoint now.

    It is due every `save_every_steps` or `save_every_minutes`, at the last step, and where the run is asked to end
    (SIGTERM): then `stopping()` is true as well. All ranks of torch.distributed are told the same, so all must ask.
    """
    return _pace.ask(step, knobs().peek.steps)


def stopping() -> bool:
    """Tell whether the run is asked to end after this step, as `due` found it."""
    return _pace.is_stopping


class _Pace:
    """When to save, and when to stop: the same at the same step on every rank."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._is_asked = False
        self._is_listening = False
        self._saved_s = time.monotonic()
        self._told: Any = None
        self._evaluated: Tuple[Optional[int], Any] = (None, None)

    def listen(self) -> None:
        """Take SIGTERM for a wish to end after the step, unless the script has its own answer to it."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._is_listening or not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        self._is_listening = True
        signal.signal(signal.SIGTERM, self._hear)

    def leave(self) -> None:
        """Let SIGTERM end the program again: there is nothing left to save."""
        if self._is_listening and threading.current_thread() is threading.main_thread():
            self._is_listening = False
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def note_eval_loss(self, step: int, loss: Any) -> None:
        """Keep the loss of the last evaluation, and its step."""
        self._evaluated = (step, loss)

    def eval_loss(self, step: int) -> Optional[float]:
        """Give the loss of an evaluation at this very step, None where there was none or it is not finite."""
        evaluated, loss = self._evaluated
        return float(loss) if evaluated == step and isinstance(loss, (int, float)) else None

    def _hear(self, *_: Any) -> None:
        self._is_asked = True

    def ask(self, step: int, steps: Optional[int]) -> bool:
        """Tell whether a checkpoint is due after a step, the last of which is `steps`."""
        self.listen()
        _channel.beat(step)
        values = knobs()
        every, minutes = values.save_every_steps, values.save_every_minutes
        is_late = minutes is not None and time.monotonic() - self._saved_s >= 60 * minutes
        agreed = self._agree(2 if self._is_asked else 1 if is_late and _rank() == 0 else 0)
        if agreed == 2 and not self.is_stopping and _rank() == 0:
            _send("stopping", step=step)
        self.is_stopping = agreed == 2
        is_last = step == steps and (every or minutes) is not None
        is_due = agreed > 0 or is_last or (every is not None and step % every == 0)
        if is_due:
            self._saved_s = time.monotonic()
            # What was wished for meanwhile is done by this one, unless it is wished for again.
            self._told = None
        return is_due

    def _agree(self, wish: int) -> int:
        """Give the largest wish of all ranks; of several ranks that of the step before, which no GPU is waited for."""
        torch = sys.modules.get("torch")
        distributed = torch and torch.distributed
        if not (distributed and distributed.is_available() and distributed.is_initialized()):
            return wish
        if distributed.get_world_size() == 1:
            return wish
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        mine = torch.full((), wish, device=device)  # type: ignore[union-attr]
        distributed.all_reduce(mine, op=distributed.ReduceOp.MAX)
        told, self._told = self._told, mine
        return 0 if told is None else int(told)


_pace = _Pace()


def save(
    step: int, source: Union[str, "os.PathLike[str]", Callable[[str], Any]], epoch: Optional[float] = None
) -> None:
    """Seal a checkpoint, so that it counts as whole, report it, and remove those that are not needed any more.

    `source` is a folder inside the checkpoints folder that is complete already, or a function that writes the
    files into the folder it is given; they appear as `step-N` only once sealed, in place of an older one. Kept are
    the last `keep_checkpoints`, and the one whose `eval_loss` was the lowest, if that was logged at its step.
    Only rank 0 does anything, and only there is the function called: gather sharded state before.
    After a bad step nothing is sealed, and an evidence event says so: a resume must not begin there.
    Raises ValueError for a folder elsewhere, and OSError if the disk refuses.
    """
    if _rank() != 0:
        return
    complaint = _guard.complaint(step)
    if complaint is not None:
        _send("evidence", step=step, values={"unsealed": complaint})
        return
    began_s = time.monotonic()
    values = knobs()
    checkpoints = Path(values.checkpoints)
    if callable(source):
        folder = _publish(checkpoints, step, source, epoch)
    else:
        folder = Path(source)
        if folder.resolve().parent != checkpoints.resolve():
            raise ValueError(f"{folder} is not a folder in {checkpoints}, where checkpoints are looked for")
        _seal(folder, step, epoch)
    _sync_folder(checkpoints)
    _send("checkpoint", step=step, values={"path": folder.name, "seconds": time.monotonic() - began_s})
    if values.keep_checkpoints is not None:
        _rotate(checkpoints, values.keep_checkpoints)


def resume_from() -> Optional[str]:
    """Give the folder of the checkpoint to go on from, or None to start at the beginning.

    In a run the agent has chosen it: the newest that is whole, every file of the size and SHA-256 it was sealed with.
    By hand it is the newest that was sealed.
    """
    values = knobs()
    values.consume("resume")
    chosen = values.checkpoint
    if values.run is None:
        chosen = max(_sealed(Path(values.checkpoints)), key=lambda one: one["step"], default=None)
    if chosen is None:
        return None
    _guard.locate(chosen["step"])
    path = Path(chosen["path"])
    return str(path) if values.peek.precision.scaler else _without_scaler(path)


def _without_scaler(folder: Path) -> str:
    """Give a checkpoint that a Trainer which scales nothing can load: its state of a scaler would be an error there.

    Such a checkpoint is of an attempt on another rung. It stays as it is: the way to it is a folder of links.
    """
    if not (folder / "scaler.pt").exists():
        return str(folder)
    view = folder.parent / ".without-scaler" / folder.name  # by its name a script may know its step
    view.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name != "scaler.pt":
            with contextlib.suppress(FileExistsError):  # another rank was quicker
                (view / path.name).symlink_to(path.resolve())
    return str(view)


def _publish(checkpoints: Path, step: int, write: Callable[[str], Any], epoch: Optional[float]) -> Path:
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
        _seal(hidden, step, epoch)
        if final.exists():
            final.rename(older)
        hidden.rename(final)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    shutil.rmtree(older, ignore_errors=True)
    return final


def _seal(folder: Path, step: int, epoch: Optional[float]) -> None:
    """Write the manifest, last and at once: a checkpoint without a matching one does not count."""
    temporary = folder / (MANIFEST + ".tmp")
    files = {}
    inner = [folder]
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            inner.append(path)
        elif path not in (folder / MANIFEST, temporary):
            files[path.relative_to(folder).as_posix()] = _fingerprint(path, sync=True)
            _channel.beat(step)  # to read a large one takes its time
    for path in inner:
        _sync_folder(path)
    values = knobs()
    manifest = {
        "version": 1,
        "run": values.run,
        "attempt": values.attempt,
        "step": int(step),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "precision": values.peek.precision.mode,
        "data": {"examples": int(step) * values.peek.split.global_batch, "epoch": epoch},
        "eval_loss": _pace.eval_loss(step),
        "files": files,
    }
    with open(temporary, "w", encoding="utf-8") as out:
        json.dump(manifest, out, indent=1, allow_nan=False)
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


def _sealed(checkpoints: Path) -> List[Dict[str, Any]]:
    """Read the manifests of the checkpoints that were sealed, each with its `path`; those of others are left out."""
    found = []
    for path in checkpoints.glob(f"[!.]*/{MANIFEST}"):
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            found.append({**manifest, "path": str(path.parent), "step": int(manifest["step"])})
        except (OSError, ValueError, TypeError, KeyError):  # torn, or none of ours: the agent minds it
            continue
    return found


def _rotate(checkpoints: Path, keep: int) -> None:
    """Remove what was sealed before the last `keep` checkpoints, but for the best one.

    Renamed first: a removal that is cut short leaves nothing that looks like a checkpoint.
    """
    sealed = sorted(_sealed(checkpoints), key=lambda one: one["step"])
    rated = [one for one in sealed if isinstance(one.get("eval_loss"), float)]
    best = min(rated, key=lambda one: one["eval_loss"], default=None)
    for one in sealed[:-keep]:
        if one is not best:
            dropped = checkpoints / f".dropped-{os.path.basename(one['path'])}"
            shutil.rmtree(dropped, ignore_errors=True)
            os.rename(one["path"], dropped)
            shutil.rmtree(dropped, ignore_errors=True)


# ---- the torch half


# The keywords of TrainingArguments that a knob decides: a script that sets one does not consume that knob.
_DECIDES = {
    "precision": {"fp16", "bf16", "tf32"},
    "split": {"per_device_train_batch_size", "gradient_accumulation_steps"},
    "steps": {"max_steps"},
    "loaders": {"dataloader_num_workers"},
}


def model_arguments(**own: Any) -> Dict[str, Any]:
    """Give the plan as keywords for `from_pretrained`; `own` keywords are added and win."""
    import torch
    import transformers

    values = knobs()
    keywords: Dict[str, Any] = {}
    attention = values.peek.precision.attention
    if attention != "sdpa" and not values.rehearsed:  # sdpa is the default, where a model has it
        keywords["attn_implementation"] = attention
    if not {"dtype", "torch_dtype"} & own.keys():
        dtype = getattr(torch, values.precision.base_dtype)  # which consumes the knob
        keywords["dtype" if _version(transformers.__version__) >= (4, 56) else "torch_dtype"] = dtype
    return {**keywords, **own}


def training_arguments(**own: Any) -> Dict[str, Any]:
    """Give the plan as keywords for `transformers.TrainingArguments`; `own` keywords are added and win.

    It also sets the environment's ACCELERATE_MIXED_PRECISION, which would turn autocast on behind Trainer.
    """
    values = knobs()
    precision, split = values.peek.precision, values.peek.split
    on_cpu = values.rehearsed or precision.device == "cpu"
    has_own_flag = bool({"fp16", "bf16"} & own.keys())  # then ours are off: both at once are an error
    keywords: Dict[str, Any] = {
        "output_dir": values.checkpoints,
        "per_device_train_batch_size": split.micro_batch,
        "gradient_accumulation_steps": split.accumulation,
        "seed": values.seed,
        "data_seed": values.seed,
        "fp16": precision.autocast_dtype == "float16" and not has_own_flag,
        "bf16": precision.autocast_dtype == "bfloat16" and not has_own_flag,
        "use_cpu": on_cpu,
        "optim": "adamw_torch",  # the fused one, Trainer's default, hides a step that overflowed
        "adam_epsilon": precision.adam_eps,
        "max_grad_norm": 1.0,
        "logging_nan_inf_filter": False,  # True would log a NaN loss as 0.0
        "include_num_input_tokens_seen": "non_padding",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": values.peek.loader_workers,
        "dataloader_pin_memory": not on_cpu,
        "save_strategy": "no",  # `trainer_callback` says when: by minutes too, and where the run is asked to end
    }
    if values.peek.steps is not None:
        keywords["max_steps"] = values.peek.steps
    if precision.tf32 and not values.rehearsed:
        keywords["tf32"] = True  # False is the default, and naming it raises on old cards in some versions
    if precision.compile and not values.rehearsed:
        keywords["torch_compile"] = True
    keywords.update(own)
    values.consume(*(knob for knob, names in _DECIDES.items() if not names & own.keys()))
    if has_own_flag:
        values.hold("precision")
    _tell_accelerate(values, "fp16" if keywords["fp16"] else "bf16" if keywords["bf16"] else "no")
    return keywords


def accelerator(**own: Any) -> Any:
    """Make an `accelerate.Accelerator` for the plan's precision and accumulation; `own` keywords win.

    The micro-batch is the script's to read, from `knobs().split`, which is what consumes that knob.
    """
    from accelerate import Accelerator

    values = knobs()
    if "mixed_precision" in own:
        values.hold("precision")
    else:
        values.consume("precision")
    precision = values.peek.precision
    keywords: Dict[str, Any] = {
        "mixed_precision": _SHORT[precision.autocast_dtype] if precision.autocast_dtype else "no",
        "gradient_accumulation_steps": values.peek.split.accumulation,
        "cpu": values.rehearsed or precision.device == "cpu",
        **own,
    }
    _tell_accelerate(values, str(keywords["mixed_precision"]))
    return Accelerator(**keywords)


def _tell_accelerate(values: Knobs, mixed_precision: str) -> None:
    """Let whoever asks accelerate by itself get the same: it reads this variable, and only in lower case."""
    os.environ["ACCELERATE_MIXED_PRECISION"] = mixed_precision
    if values.rehearsed:
        _rehearse()


@functools.lru_cache(maxsize=None)
def _rehearse() -> None:
    """Let accelerate, and so Trainer, do fp16 on the CPU as on a card, where it switches it off without a word.

    An Accelerator is the one place where both Trainer and a script's own loop take autocast and scaler from.
    """
    import torch
    from accelerate import Accelerator

    plain = Accelerator.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        if self.mixed_precision == "fp16" and self.device.type == "cpu":
            settings = self.scaler_handler.to_kwargs() if self.scaler_handler is not None else {}
            self.native_amp = True
            self.scaler = torch.amp.GradScaler("cpu", **settings)

    Accelerator.__init__ = init


def autocast() -> Any:
    """Give a fresh context manager for the forward pass: the plan's autocast, or none."""
    import torch

    values = knobs()
    dtype = values.precision.autocast_dtype
    device = _device(values)
    if dtype is None:
        return torch.autocast(device, enabled=False)
    return torch.autocast(device, dtype=getattr(torch, dtype))


def scaler() -> Any:
    """Make a `torch.amp.GradScaler` for the plan; where it scales nothing, it passes everything through."""
    import torch

    values = knobs()
    return torch.amp.GradScaler(_device(values), enabled=values.precision.scaler)


def _device(values: Knobs) -> str:
    """Give the kind of device that the training runs on, as torch calls it."""
    import torch

    device = "cpu" if values.rehearsed else values.peek.precision.device
    if device != "auto":
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def prepare(model: Any) -> Any:
    """Make a torch model safe to train at the plan's precision, in place, give it back, and start the guard.

    Trainable parameters get the plan's dtype: peft leaves modules_to_save, norms, biases and a new head in the
    base's, and a scaler refuses float16 gradients. From then on a cast of the live model is refused. Call it
    after adapters are added and before an optimizer is built, whose state would keep the old dtype. Raises
    RuntimeError if nothing is trainable, or if a frozen half-precision parameter is of another dtype than the
    plan's base.
    """
    import torch

    values = knobs()
    precision = values.peek.precision
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise RuntimeError(
            "nothing in the model is trainable: before prepare(), add an adapter or set requires_grad"
        )
    values.announce()
    halves = (torch.float16, torch.bfloat16)
    wanted = torch.float32 if precision.scaler else getattr(torch, precision.trainable_dtype)
    upcast = set()
    for parameter in trainable:
        if parameter.dtype in halves or (wanted in halves and parameter.dtype == torch.float32):
            upcast.add(id(parameter))
            parameter.data = parameter.data.to(wanted)
    base = getattr(torch, precision.base_dtype)
    if base in halves and wanted == torch.float32:
        _bridge_dtypes(model, upcast, base)
    if values.run is not None:  # by hand there is no plan to hold the base against
        _check_base(model, base, halves)
    if precision.device == "cuda" and not values.rehearsed:
        _switch_tf32(precision.tf32)
    _spread_heads(precision)
    if hasattr(model, "gradient_checkpointing_enable") and values.activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _guard.watch(model)
    _prepared.add(model)
    return model


def _bridge_dtypes(model: Any, upcast: Set[int], base: Any) -> None:
    """Let modules whose weights became float32 compute in the base's dtype where no autocast does it.

    So it is without autocast by plan, and in an evaluation outside of it. As under autocast the weights are cast for
    the length of a forward pass.
    """
    import torch

    def lower(names: List[str], module: Any, inputs: Any) -> None:
        if any(torch.is_autocast_enabled(one.device.type) for one in inputs if isinstance(one, torch.Tensor)):
            return
        own = module._parameters  # noqa: SLF001  # the one place from which a module takes them
        module._launch_wide = {name: own[name] for name in names if own[name].dtype == torch.float32}  # noqa: SLF001
        own.update({name: wide.to(base) for name, wide in module._launch_wide.items()})  # noqa: SLF001

    def raise_again(module: Any, _inputs: Any, _output: Any) -> None:
        module._parameters.update(module.__dict__.pop("_launch_wide", {}))  # noqa: SLF001

    for module in model.modules():
        named = module.named_parameters(recurse=False)
        names = [name for name, parameter in named if id(parameter) in upcast]
        if names:
            module.register_forward_pre_hook(functools.partial(lower, names))
            module.register_forward_hook(raise_again, always_call=True)


def _switch_tf32(is_on: bool) -> None:
    """Let float32 products use tf32, or not, as transformers switches it: a new switch is not to be mixed with the old."""
    import torch

    if hasattr(torch.backends, "fp32_precision"):  # torch 2.9 and later
        torch.backends.fp32_precision = "tf32" if is_on else "ieee"
    else:
        torch.backends.cuda.matmul.allow_tf32 = is_on
        torch.backends.cudnn.allow_tf32 = is_on


def _check_base(model: Any, base: Any, halves: Sequence[Any]) -> None:
    """Hold the frozen parameters against the plan; integers are quantized weights, and another matter."""
    mend = "load the model with from_pretrained(..., **worker.model_arguments())"
    large = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or parameter.dtype == base:
            continue
        if parameter.dtype in halves:
            raise RuntimeError(f"{name} is {parameter.dtype}, but the plan's base is {base}: {mend}")
        if parameter.is_floating_point() and parameter.itemsize >= 4 and base in halves:
            large.append(name)
    if large and _rank() == 0:
        print(
            f"precision: {len(large)} frozen tensors are wider than the plan's {base}, the first is {large[0]}; "
            f"that is safe and takes more memory. To have it as planned, {mend}",
            flush=True,
        )


def _spread_heads(precision: Precision) -> None:
    """Let transformers repeat the keys of grouped heads where SDPA could not take them grouped.

    Before capability 8.0 and torch 2.14 they fall to the math kernel, whose memory is quadratic in the length.
    """
    import torch

    sdpa = sys.modules.get(
        "transformers.integrations.sdpa_attention"
    )  # there, if the model is of transformers
    if precision.device != "cuda" or precision.capability is None or not hasattr(sdpa, "use_gqa_in_sdpa"):
        return
    if _version(precision.capability) < (8, 0) and _version(torch.__version__) < (2, 14):
        sdpa.use_gqa_in_sdpa = lambda *_args, **_kwargs: False  # type: ignore[union-attr]


def _version(text: str) -> Tuple[int, ...]:
    """Give the first two numbers of a version or a capability."""
    return tuple(int(part) for part in text.split(".")[:2])


def trainer_callback() -> Any:
    """Give a `transformers.TrainerCallback` that reports the begin and every log line, and saves and seals checkpoints.

    It saves when `due` says so, and ends the training after a step where the run is asked to end: see `stopping`.
    Each of Trainer's steps is judged by the guard, of a model that was not prepared too. Where Trainer counts
    tokens, a line of a training step also says how many a second it saw since the last.
    """
    from accelerate import PartialState
    from transformers import TrainerCallback

    class Reporter(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
        """Sends what a Trainer says to the run."""

        def __init__(self) -> None:
            self._tokens = 0
            self._clock_s = 0.0

        def on_train_begin(self, args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
            """Report where training begins and ends, and let the guard follow this Trainer's steps."""
            values = knobs()
            values.announce()
            values.consume("checkpoints")
            _pace.listen()
            planned = values.peek.precision.autocast_dtype
            if (args.fp16, args.bf16) != (planned == "float16", planned == "bfloat16"):
                values.hold("precision")
            self._tokens, self._clock_s = state.num_input_tokens_seen, time.monotonic()
            _guard.follow_trainer(kwargs.get("model"), state.global_step)
            if state.is_world_process_zero:
                begin(state.global_step, state.max_steps)

        def on_step_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
            """Let the guard judge the step, and save or stop where it is time to."""
            _guard.tick(state.global_step)
            if _pace.ask(state.global_step, state.max_steps):
                control.should_save = True
            if stopping():
                control.should_training_stop = True

        def on_train_end(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
            """Let the guard judge what it has not read yet; a loop that follows is not this Trainer's."""
            _guard.leave_trainer()
            _pace.leave()
            _send("end")

        def on_prediction_step(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            """Show that an evaluation goes on."""
            _channel.beat(state.global_step)

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
            folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            save(state.global_step, folder, epoch=state.epoch)

        def _speed(self, tokens: int) -> Dict[str, float]:
            tokens_before, clock_before_s = self._tokens, self._clock_s
            self._tokens, self._clock_s = tokens, time.monotonic()
            if tokens <= tokens_before or self._clock_s <= clock_before_s:
                return {}
            return {"tokens_per_s": (tokens - tokens_before) / (self._clock_s - clock_before_s)}

    return Reporter()


# ---- the guard: what it judges by


class Tripped(RuntimeError):  # noqa: N818  # what happened, in the README's word
    """Raised when the guard gives an attempt up; its text says why, with the class and the figures."""


DIVERGED, UNTAUGHT = "nan-divergence", "not-learning"
SETTLING_SKIPS = 10  # a scaler begins far too high and halves at every skip: so many are no sign of anything
SKIP_WINDOW = 20  # steps in which less than half may be skipped, once the scaler has settled
FIRST_LOSSES = 5  # their median is where the loss began
PROVEN_STEPS = 20


class _Rule(NamedTuple):
    """What makes a step bad, and how many bad ones in a row end the attempt."""

    kind: str
    steps: int
    text: str


# Where several have ended it, the first one speaks. Four bad steps, for on CUDA a step's figures are read one later: the
# fifth is the last.
_RULES = {
    "weights": _Rule(DIVERGED, 1, "trainable weights became non-finite"),
    "loss": _Rule(DIVERGED, 2, "the loss is not finite"),
    "gradients": _Rule(DIVERGED, 4, "every gradient overflowed or was not finite"),
    "collapse": _Rule(
        DIVERGED, 3, "the gradient scaler collapses: half of the steps overflow, or its scale is below 1"
    ),
    "explosion": _Rule(DIVERGED, 3, "the loss is far above where it began"),
    "leap": _Rule(
        DIVERGED, 3, "weights move by more than their own size in a step, while the loss does not fall"
    ),
    "still": _Rule(UNTAUGHT, 4, "no trainable weight moves, although the learning rate is above zero"),
    "zero": _Rule(UNTAUGHT, 4, "every gradient is exactly zero, or the loss where no gradient can be seen"),
    # Not a divergence: another precision would not mend it. What is saved is the trainables alone, and they were
    # trained beside a base that nobody will have again.
    "base": _Rule(UNTAUGHT, 3, "the frozen base moves: what is saved without it would be worth nothing"),
}
_LAST_WORDS = ("weights", "loss", "gradients", "explosion")  # one such step is enough where it is the last
_POISON = ("weights", "loss", "explosion", "leap")  # after such a step nothing is sealed


class _Figures(NamedTuple):
    """What was seen of one optimizer step; None where it could not be seen."""

    loss: Optional[float] = None  # the mean of its forward passes
    moved: Optional[bool] = None
    finite: bool = True  # the trainable weights after it
    leapt: bool = False
    base_moved: bool = False
    gradient: str = ""  # fine, zero or bad
    skipped: bool = False
    scale: Optional[float] = None
    rate: Optional[float] = None  # the largest learning rate
    is_rated: bool = False  # every learning rate is above zero, and no mere end or beginning of a schedule


class _Trip(NamedTuple):
    """Why an attempt is given up."""

    rule: str
    kind: str
    why: str
    step: int
    since: int
    figures: Dict[str, Any]


class _Judge:
    """Judges steps by their figures, in order; it knows no torch."""

    def __init__(self) -> None:
        self.steps = self.good_steps = self.skips = 0
        self.has_moved = False
        self.loss: Optional[float] = None
        self.loss_first: Optional[float] = None
        self.recovered: Optional[Dict[str, Any]] = None  # a non-finite loss that the last step left behind
        self._firsts: List[float] = []
        self._settled: List[
            bool
        ] = []  # of the last steps since the scaler has settled, whether they were skipped
        self._streaks: Dict[str, Tuple[int, int]] = {}  # rule -> how many bad steps in a row, since which
        self.last = _Figures()

    def see(self, step: int, seen: _Figures) -> Optional[_Trip]:
        """Take the figures of a step; give a trip if the attempt ends here."""
        self.last = seen
        self.steps += 1
        self.skips += seen.skipped
        self.has_moved = self.has_moved or (bool(seen.moved) and not seen.skipped)
        has_room = seen.scale is None or seen.scale >= 1.0
        is_settling = not self.has_moved and self.skips <= SETTLING_SKIPS and has_room
        is_overflow = not is_settling if seen.skipped else seen.gradient == "bad"
        self._mark("weights", not seen.finite, step)
        self._mark("gradients", is_overflow, step)
        if not is_settling:
            self._settled = [*self._settled, seen.skipped][-SKIP_WINDOW:]
        is_often = len(self._settled) == SKIP_WINDOW and 2 * sum(self._settled) >= SKIP_WINDOW
        self._mark("collapse", not is_settling and (is_often or not has_room), step)
        self._mark("base", seen.base_moved, step)
        if seen.gradient:
            self._mark("zero", seen.gradient == "zero", step)
        if seen.loss is not None:
            self._mark_loss(seen.loss, step)
        if seen.moved is not None and seen.is_rated and not seen.skipped:
            self._mark("still", not seen.moved, step)
        if self.loss is not None and self.loss_first is not None:
            self._mark("leap", seen.leapt and not self.loss < self.loss_first, step)
        self.good_steps += not self._streaks and not seen.skipped
        return self._trip(step)

    def hear(self, step: int, loss: float) -> Optional[_Trip]:
        """Take a loss that the script told, where none can be seen."""
        self._mark_loss(loss, step)
        return self._trip(step)

    def doubts(self, rule: str) -> bool:
        """Whether a rule has been broken twice running by what was looked at, so that all should be looked at."""
        return self._streaks.get(rule, (0, 0))[0] >= 2

    def forgive(self, rule: str) -> None:
        """Begin a rule's count anew."""
        self._streaks.pop(rule, None)

    @property
    def poison(self) -> Optional[str]:
        """Say what may have spoilt the weights in the last step, if anything."""
        return next((_RULES[rule].text for rule in _POISON if rule in self._streaks), None)

    def pending(self, step: int) -> Optional[_Trip]:
        """Give a trip if the training must not end like this, though no rule has ended it."""
        if self.skips and self.skips == self.steps:
            self._streaks.setdefault("gradients", (self.skips, step - self.steps + 1))
        elif self._streaks.keys() == {"gradients"} and self.last.skipped:
            return None  # the scaler did its work, and the weights are sound
        return self._trip(step, at_the_end=True)

    def _mark_loss(self, loss: float, step: int) -> None:
        is_finite = math.isfinite(loss)
        streak = self._streaks.get("loss")
        if is_finite and streak is not None:
            self.recovered = {"since": streak[1], "steps": streak[0], "loss": _scalar("loss", self.loss)}
        self._mark("loss", not is_finite, step)
        if is_finite and len(self._firsts) == FIRST_LOSSES:
            self._mark("explosion", loss > 10 * abs(statistics.median(self._firsts)) + 10, step)
        elif is_finite:
            self._firsts.append(loss)
        if not self.last.gradient:
            self._mark("zero", loss == 0.0, step)
        self.loss = loss
        if self.loss_first is None:
            self.loss_first = loss

    def _mark(self, rule: str, is_bad: bool, step: int) -> None:
        if is_bad:
            count, since = self._streaks.get(rule, (0, step))
            self._streaks[rule] = (count + 1, since)
        else:
            self._streaks.pop(rule, None)

    def _trip(self, step: int, at_the_end: bool = False) -> Optional[_Trip]:
        for name, rule in _RULES.items():
            count, _ = self._streaks.get(name, (0, 0))
            is_last_word = at_the_end and name in _LAST_WORDS
            if count and (is_last_word or count >= rule.steps):
                begun = [
                    max(0, since - 1)
                    if other == "explosion"
                    else since  # a loss shows what the step before made
                    for other, (_, since) in self._streaks.items()
                    if _RULES[other].kind == rule.kind
                ]
                return self._tell(name, step, min(begun), count)
        return None

    def _tell(self, name: str, step: int, since: int, count: int) -> _Trip:
        rule = _RULES[name]
        last = self.last
        figures = {
            "loss": self.loss,
            "loss_first": self.loss_first,
            "learning_rate": last.rate,
            "scale": last.scale,
            "skipped": self.skips,
        }
        known = {one: _scalar(one, value) for one, value in figures.items() if value is not None}
        seen = ", ".join(
            f"{one} {value:.4g}" if isinstance(value, float) else f"{one} {value}"
            for one, value in known.items()
        )
        how_long = (
            "at the end" if count < rule.steps else f"{count} steps running" if count > 1 else "at once"
        )
        why = f"{rule.kind}: {rule.text}, {how_long}, since step {since} ({seen})"
        return _Trip(name, rule.kind, why, step, since, known)


# ---- the guard: what it sees

TENSORS = 16  # of the trainables, looked at in every step
BASE_TENSORS = 2
GRADIENT_TENSORS = 4  # of each step, the next ones each time
ELEMENTS = 4096  # of all these together: of an embedding a step may move few rows
LEAST_SIZE = 0.05  # of the largest norm: what has less has only begun to be trained
BASE_DRIFT = (
    0.05  # of its norm in a step; merging an adapter and taking it out again drifts by a hundredth of it
)


class _Sample:
    """Some elements of some tensors: whether they move, how far, and into what."""

    def __init__(self, parameters: Sequence[Any], tensors: int) -> None:
        dice = random.Random(0)  # noqa: S311  # the same choice each time, and no secret
        chosen = dice.sample(list(parameters), min(tensors, len(parameters)))
        self.parts = [(one, _places(one.numel(), ELEMENTS // len(chosen), one.device)) for one in chosen]
        self.norms: Any = None  # of each tensor at the start
        self._last: Any = None

    def aim(self) -> None:
        """Look at the elements with the largest gradients instead."""
        count = max(1, ELEMENTS // len(self.parts))
        self.parts = [
            (one, one.grad.flatten().abs().topk(min(count, one.numel())).indices) for one, _ in self.parts
        ]
        if len({places.numel() for _, places in self.parts}) > 1:  # rows of one length
            least = min(places.numel() for _, places in self.parts)
            self.parts = [(one, places[:least]) for one, places in self.parts]
        self._last = None
        self.look()

    def look(self) -> Any:
        """Give what the elements are and by how much they moved since the last look: two matrices, a row a tensor."""
        import torch

        device = self.parts[0][0].device
        rows = [
            parameter.detach().take(places).to(device, torch.float32, non_blocking=True)
            for parameter, places in self.parts
        ]
        now = torch.stack(rows)
        before, self._last = self._last, now
        if before is None:
            self.norms = now.norm(dim=1)
            return now, torch.zeros_like(now)
        return now, now - before


@functools.lru_cache(maxsize=64)
def _places(count: int, wanted: int, device: Any) -> Any:
    """Draw which of `count` elements to look at, without touching the training's dice."""
    import torch

    dice = torch.Generator().manual_seed(0)
    return torch.randint(count, (wanted,), generator=dice).to(device)


def _can_be_sampled(tensor: Any) -> bool:
    """Tell a plain floating tensor from a shard, a placeholder, or quantized weights."""
    import torch

    return bool(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        and tensor.numel()
        and not tensor.is_meta
        and not tensor.is_sparse
    )


class _Reading(NamedTuple):
    """The figures of a step, on their way from the device."""

    step: int
    names: Tuple[str, ...]
    numbers: Any
    arrived: Any  # a CUDA event, or None where nothing is waited for
    rate: Optional[float]
    is_rated: bool


class _Guard:
    """Watches the models of this process and judges each of their optimizer steps, which it calls a tick.

    Under a Trainer a tick is its `on_step_end`; else a GradScaler's `update`, for a skipped step calls no
    optimizer; else the end of an optimizer's `step`. On CUDA figures are read one tick late, when they have long
    arrived: nothing waits for the device.
    """

    def __init__(self) -> None:
        self.models: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self.is_scaling = False  # inside GradScaler.step, which ends in no tick
        self._judge = _Judge()
        self._in_trainer = False
        self._step = 0
        self._is_proven = False
        self._tripped: Optional[Tripped] = None
        self._reading: Optional[_Reading] = None
        self._driver: Any = None  # a weak reference to the optimizer whose steps count
        self._owns: Any = weakref.WeakKeyDictionary()  # optimizer -> whether it has one of our trainables
        self._other_steps = 0
        self._bad_norm_at: Optional[int] = None
        self._forget_model()
        self._forget_step()
        self._sees_loss = False

    def _forget_model(self) -> None:
        self._weights: Optional[_Sample] = None
        self._base: Optional[_Sample] = None
        self._trainable: List[Any] = []
        self._dtypes: List[Any] = []
        self._cursor = 0
        self._rates: List[float] = []
        self._most_rate = 0.0

    def _forget_step(self) -> None:
        self._loss: Any = None
        self._forwards = 0
        self._gradient: Any = None
        self._scaled: Any = None

    # -- what it watches

    def watch(self, model: Any) -> None:
        """Follow a model from now on."""
        if model in self.models:
            return
        _hook_torch()
        model.register_forward_hook(_see_forward)
        self.models.add(model)
        self._forget_model()

    def follow_trainer(self, model: Any, step: int) -> None:
        """Take a Trainer's steps as ticks, from after `step`."""
        if model is not None and not self.models:
            self.watch(model)
        self._in_trainer = True
        self.restart(step)

    def restart(self, step: int) -> None:
        """Begin to judge anew, after `step`: each training has a first loss and a scaler's settling of its own."""
        self._judge, self._reading = _Judge(), None
        self._forget_model()
        self._forget_step()
        self._step = step

    def leave_trainer(self) -> None:
        """Take optimizers' steps as ticks again."""
        self._flush()
        self._in_trainer = False

    def locate(self, step: int) -> None:
        """Learn how many steps are done."""
        if not self._in_trainer:
            self._step = step

    def hear(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take what the script logs: a loss where none is seen, Trainer's norm of the gradient, and the step."""
        norm, loss = _number(metrics.get("grad_norm")), _number(metrics.get("loss"))
        if norm is not None and not math.isfinite(norm):
            self._bad_norm_at = step
        if loss is None:
            return
        if not self._in_trainer:  # a forward pass since the last step: its own step is still to come
            self._step = step - 1 if self._forwards else step
        if self.models and not self._sees_loss:
            self._act(self._judge.hear(step, loss))

    # -- hooks

    def see_forward(self, module: Any, output: Any) -> None:
        """Note a forward pass of a training, and add its loss to those of this step; it stays on its device.

        Before the first step the weights are looked at.
        """
        import torch

        if module not in self.models or not module.training or not torch.is_grad_enabled():
            return
        self._forwards += 1
        if self._weights is None:
            self._begin()
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss = loss.detach().float().mean()
            self._loss = loss if self._loss is None else self._loss + loss.to(self._loss.device)
            self._sees_loss = True

    def before_step(self, optimizer: Any, has_closure: bool = False) -> None:
        """Look at gradients and learning rates, which a script may clear or change right after the step.

        With a closure the gradients are still to come. Raises RuntimeError if a trainable's dtype has changed, before
        the optimizer would say it less plainly, and for an eps that is zero in float16.
        """
        if not self.models:
            return
        if self._weights is None:
            self._begin()
        if not self._drives(optimizer):
            return
        if [parameter.dtype for parameter in self._trainable] != self._dtypes:
            raise RuntimeError(_CAST)
        _check_eps(optimizer)
        self._rates = [_rate(group) for group in optimizer.param_groups]
        if has_closure:
            return
        if self._judge.doubts("still"):
            self._aim(optimizer)
        self._gradient = self._look_at_gradients()

    def _aim(self, optimizer: Any) -> None:
        """Look from now on where this optimizer must move something: at the largest gradients that it was given.

        A sample may miss what is trained: the rows of an embedding that were used, or a head alone.
        """
        given = {id(part) for group in optimizer.param_groups for part in group["params"]}
        with_gradient = [
            part for part in self._trainable if part.grad is not None and _can_be_sampled(part.grad)
        ]
        owned = [part for part in with_gradient if id(part) in given]
        if owned or with_gradient:
            self._weights = _Sample(owned or with_gradient, TENSORS)
            self._weights.aim()

    def after_step(self, optimizer: Any) -> None:
        """Tick, where neither a Trainer nor a scaler says when."""
        if self.models and not self.is_scaling and not self._in_trainer and self._is_driver(optimizer):
            self.tick()

    def after_update(self, scale: Any, before: Any) -> None:
        """Note a scaler's word, which lowers its scale exactly when it skipped, and tick."""
        self._scaled = (scale < before, scale)
        if not self._in_trainer:
            self.tick()

    # -- a tick

    def tick(self, step: Optional[int] = None) -> None:
        """Judge the optimizer step that has just ended, `step` by the script's count. Raises Tripped."""
        if not self.models:
            return
        self._step = self._step + 1 if step is None else step
        _channel.beat(self._step)
        numbers = self._measure()
        rate = max(self._rates, default=math.nan)
        self._most_rate = max(self._most_rate, rate if math.isfinite(rate) else 0.0)
        is_rated = min(self._rates, default=0.0) > 0 and rate >= self._most_rate / 1000
        known_rate = rate if math.isfinite(rate) else None
        self._forget_step()
        reading = _Reading(self._step, tuple(numbers), *_fetch(numbers), known_rate, is_rated)
        if reading.arrived is not None:
            self._reading, reading = reading, self._reading
        self._read(reading)

    def _measure(self) -> Dict[str, Any]:
        """Give this step's figures as tensors, where they are."""
        import torch

        is_fresh = self._weights is None or not all(part.requires_grad for part, _ in self._weights.parts)
        if is_fresh:
            self._begin()
        numbers: Dict[str, Any] = {}
        with torch.no_grad():
            if self._weights is not None:
                now, moves = self._weights.look()
                norms = self._weights.norms
                has_size = (
                    norms > LEAST_SIZE * norms.max()
                )  # a LoRA's B begins near zero, and any step is more than that
                leaps = ~(moves.norm(dim=1) <= norms) & has_size  # NaN is no small move
                numbers["finite"] = (now.isfinite().all(dim=1) | ~norms.isfinite()).all()
                numbers["leapt"] = has_size.any() & (2 * leaps.sum() >= has_size.sum())
                if not is_fresh and self._counts_standing_still():
                    numbers["moved"] = (moves != 0).any()
            if self._base is not None:
                _, moves = self._base.look()
                numbers["base"] = (moves.norm(dim=1) > BASE_DRIFT * self._base.norms).any()
            if self._loss is not None:
                numbers["loss"] = self._loss / max(1, self._forwards)
            if self._gradient is not None:
                numbers["bad"], numbers["zero"] = self._gradient
            if self._scaled is not None:
                numbers["skipped"], numbers["scale"] = self._scaled
        return numbers

    def _counts_standing_still(self) -> bool:
        """Tell whether our weights should have moved: a critic's step moves none of its generator's."""
        has_gradients = self._gradient is not None
        return self._in_trainer or has_gradients or self._is_owner(self._get_driver())

    def _begin(self) -> None:
        """Choose what to look at, and take the first look."""
        parameters = {id(part): part for model in self.models for part in model.parameters()}.values()
        self._trainable = [part for part in parameters if part.requires_grad]
        self._dtypes = [part.dtype for part in self._trainable]
        self._owns.clear()
        plain = [part for part in parameters if _can_be_sampled(part)]
        trainable = [part for part in plain if part.requires_grad]
        frozen = [part for part in plain if not part.requires_grad]
        self._weights = _Sample(trainable, TENSORS) if trainable else None
        self._base = _Sample(frozen, BASE_TENSORS) if frozen else None
        for sample in (self._weights, self._base):
            if sample is not None:
                sample.look()

    def _look_at_gradients(self) -> Any:
        """Tell of the next few trainables whether a gradient is not finite, and whether all are zero.

        Where they have been zero before, every gradient is asked: an embedding's may be zero almost everywhere.
        """
        import torch

        found: List[Any] = []
        for _ in self._trainable:
            self._cursor = (self._cursor + 1) % len(self._trainable)
            gradient = self._trainable[self._cursor].grad
            if gradient is not None and _can_be_sampled(gradient):
                device = found[0].device if found else gradient.device
                places = _places(gradient.numel(), ELEMENTS // GRADIENT_TENSORS, gradient.device)
                found.append(gradient.take(places).to(device, torch.float32, non_blocking=True))
            if len(found) == GRADIENT_TENSORS:
                break
        if not found:
            return None
        elements = torch.cat(found)
        is_zero = (elements == 0).all()
        if self._judge.doubts("zero"):
            gradients = [part.grad for part in self._trainable if part.grad is not None]
            is_zero = ~torch.stack([gradient.any().to(elements.device) for gradient in gradients]).any()
        return ~elements.isfinite().all(), is_zero

    def _drives(self, optimizer: Any) -> bool:
        """Tell whether this optimizer's steps count: of several it is one, and better one of our trainables'."""
        if self._in_trainer:
            return True
        if optimizer not in self._owns:
            if not self._is_up_to_date():
                self._begin()
            ours = {id(part) for part in self._trainable}
            groups = optimizer.param_groups
            self._owns[optimizer] = any(id(part) in ours for group in groups for part in group["params"])
        if self._is_driver(optimizer):
            self._other_steps = 0
            return True
        self._other_steps += 1
        driver = self._get_driver()
        is_silent = self._other_steps > 10 * len(self._owns)
        if driver is None or is_silent or (self._owns[optimizer] and not self._is_owner(driver)):
            self._driver = weakref.ref(optimizer)
            self._other_steps = 0
            self._judge.forgive("still")
            return True
        return False

    def _is_driver(self, optimizer: Any) -> bool:
        return self._get_driver() is optimizer

    def _is_owner(self, optimizer: Any) -> bool:
        return optimizer is not None and self._owns.get(optimizer, False)

    def _get_driver(self) -> Any:
        return None if self._driver is None else self._driver()

    # -- what follows from it

    def _read(self, reading: Optional[_Reading]) -> None:
        if reading is None:
            return
        if reading.arrived is not None:
            reading.arrived.synchronize()
        numbers = {name: reading.numbers[place].item() for place, name in enumerate(reading.names)}
        # A norm is logged after its step has been judged: it counts with the next, unless the scaler skipped it.
        is_bad = self._bad_norm_at == reading.step - 1 and not self._judge.last.skipped
        is_bad = is_bad or bool(numbers.get("bad"))
        gradient = "bad" if is_bad else "zero" if numbers.get("zero") else "fine"
        seen = _Figures(
            loss=numbers.get("loss"),
            moved=bool(numbers["moved"]) if "moved" in numbers else None,
            finite=bool(numbers.get("finite", True)),
            leapt=bool(numbers.get("leapt", False)),
            base_moved=bool(numbers.get("base", False)),
            gradient=gradient if is_bad or "bad" in numbers else "",
            skipped=bool(numbers.get("skipped", False)),
            scale=numbers.get("scale"),
            rate=reading.rate,
            is_rated=reading.is_rated,
        )
        self._act(self._judge.see(reading.step, seen))
        if self._judge.good_steps >= PROVEN_STEPS:
            self._prove(reading.step)

    def _flush(self) -> None:
        reading, self._reading = self._reading, None
        self._read(reading)

    def _act(self, trip: Optional[_Trip]) -> None:
        """Tell of a recovery, or give the attempt up."""
        recovered, self._judge.recovered = self._judge.recovered, None
        if trip is None:
            if recovered is not None:
                _send("evidence", step=self._step, values={"recovered": recovered})
            return
        if trip.rule in ("still", "base") and not self._is_up_to_date():
            self._begin()  # the parameters are others by now, and these will never move
            self._judge.forgive(trip.rule)
            return
        if self._tripped is None:
            self._tripped = Tripped(trip.why)
            values = {"class": trip.kind, "why": trip.why, "since": trip.since, **trip.figures}
            _send("trip", step=trip.step, values=values)
            if "LAUNCH_ATTEMPT" not in os.environ:
                print(trip.why, flush=True)
        raise self._tripped

    def _is_up_to_date(self) -> bool:
        there = {id(part) for model in self.models for part in model.parameters()}
        samples = [sample for sample in (self._weights, self._base) if sample is not None]
        return all(id(part) in there for sample in samples for part, _ in sample.parts)

    def complaint(self, step: int) -> Optional[str]:
        """Say why a checkpoint of now must not count, or None; every trainable is looked at, whole."""
        self.locate(step)
        if not self.models:
            return None
        self._flush()
        if self._tripped is not None:
            return str(self._tripped)
        if self._judge.poison is not None:
            return self._judge.poison
        is_whole = all(bool(part.isfinite().all()) for part in self._trainable if _can_be_sampled(part))
        return None if is_whole else _RULES["weights"].text

    def finish(self) -> None:
        """Close the account: the proof if it is still to come. Raises Tripped if the last steps were bad."""
        self._flush()
        if self._tripped is not None:
            raise self._tripped
        judge = self._judge
        self._act(judge.pending(self._step))
        if judge.steps:
            self._prove(self._step)
            if _rank() == 0:
                values = {"guard": {"steps": judge.steps, "skipped": judge.skips}}
                _send("evidence", step=self._step, values=values)

    def _prove(self, step: int) -> None:
        """Send, once, what shows that the precision works for this model."""
        if self._is_proven or _rank() != 0 or not self.models:
            return
        import torch

        self._is_proven = True
        judge, model = self._judge, next(iter(self.models))
        dtypes: Dict[str, Dict[str, int]] = {"trainable": {}, "frozen": {}}
        trainable = []
        for name, part in model.named_parameters():
            dtype = str(part.dtype).replace("torch.", "")
            counts = dtypes["trainable" if part.requires_grad else "frozen"]
            counts[dtype] = counts.get(dtype, 0) + 1
            if part.requires_grad:
                trainable.append([name, list(part.shape), dtype])
        config = getattr(model, "config", None)
        plain: Any = getattr(config, "to_dict", lambda: config)()
        if isinstance(plain, dict):  # without the folder that it came from, which differs by host
            plain = {str(name): value for name, value in plain.items() if not str(name).startswith("_")}
        losses = {"loss_first": judge.loss_first, "loss_last": judge.loss}
        proof = {
            "steps": judge.steps,
            **{name: None if loss is None else _scalar(name, loss) for name, loss in losses.items()},
            "skipped": judge.skips,
            "dtypes": dtypes,
            "key": {
                "torch": torch.__version__,
                "model": _digest_of_config(plain),
                "trainable": _digest(sorted(trainable)),
                "precision": knobs().precision_key,
            },
        }
        _send("evidence", step=step, values={"proof": proof})


def _digest_of_config(config: Any) -> Optional[str]:
    """Give the digest of a model's config; None where it has none, or one that has no canonical form."""
    try:
        return None if config is None else _digest(config)
    except (TypeError, ValueError):  # keys of several types, or a circle
        return None


def _fetch(numbers: Mapping[str, Any]) -> Tuple[Any, Any]:
    """Bring figures to the host: at once, or on CUDA with the event that says when they are there."""
    import torch

    if not numbers:
        return None, None
    tensors = list(numbers.values())
    device = tensors[0].device
    together = torch.stack([one.to(device, torch.float32, non_blocking=True) for one in tensors])
    if device.type != "cuda":
        return together, None
    here = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)
    here.copy_(together, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return here, event


def _rate(group: Mapping[str, Any]) -> float:
    """Give a group's learning rate, or NaN: one that lies on a device is not waited for."""
    rate = group.get("lr")
    if rate is None or getattr(getattr(rate, "device", None), "type", "cpu") != "cpu":
        return math.nan
    return float(rate)


def _check_eps(optimizer: Any) -> None:
    """Raise RuntimeError for an optimizer that divides float16 by an eps of zero: its first step makes NaN."""
    import torch

    for group in optimizer.param_groups:
        eps = group.get("eps")
        if isinstance(eps, float) and eps < 2**-14 and any(p.dtype == torch.float16 for p in group["params"]):
            raise RuntimeError(
                f"eps {eps:g} vanishes in float16, and the update divides by it: "
                "give the optimizer eps=worker.knobs().precision.adam_eps"
            )


def _number(value: Any) -> Optional[float]:
    """Give a logged metric as a number, or None if it is none; those not finite are strings by then."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


_guard = _Guard()


# ---- the guard: how torch tells it

_prepared: "weakref.WeakSet[Any]" = weakref.WeakSet()  # models that must not be cast any more

_CAST = (
    "the dtype of a model in training was to change. The optimizer's state keeps the old one, and Adam ends at "
    "the next step, where the two meet. Cast a copy: copy.deepcopy(model).to(...); Trainer's bf16_full_eval and "
    "fp16_full_eval cast the live model too: evaluate without them"
)


def _see_forward(module: Any, _arguments: Any, output: Any) -> None:
    """Tell of a forward pass: one function for all models, for copies and pickles of a model keep its hooks."""
    _guard.see_forward(module, output)


@functools.lru_cache(maxsize=None)
def _hook_torch() -> None:
    """Have torch tell the guard of every optimizer step, scaler update and cast in this process.

    A scaler is hooked as a class: a script's own, accelerate's and Trainer's are made where we are not asked.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        closures = (*args[1:], kwargs.get("closure"))  # the first is the optimizer
        _guard.before_step(optimizer, has_closure=any(one is not None for one in closures))

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: _guard.after_step(optimizer))

    # torch.compile must not trace it. Under the same name, by which a pickled model finds it again.
    globals()["_see_forward"] = torch.compiler.disable(_see_forward)

    grad_scaler = torch.amp.GradScaler
    step, update = grad_scaler.step, grad_scaler.update
    apply = torch.nn.Module._apply  # noqa: SLF001  # all casts go through it: to, half, float, …; it has no public name

    @functools.wraps(step)
    def watched_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        _guard.is_scaling = self.is_enabled()
        try:
            return step(self, *args, **kwargs)
        finally:
            _guard.is_scaling = False

    @functools.wraps(update)
    def watched_update(self: Any, *args: Any, **kwargs: Any) -> None:
        before = self._scale.clone() if self.is_enabled() else None
        update(self, *args, **kwargs)
        if before is not None:
            _guard.after_update(self._scale, before)

    @functools.wraps(apply)
    def watched_apply(self: Any, change: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
        if self in _prepared:
            for dtype in {part.dtype for part in self.parameters() if part.is_floating_point()}:
                if change(torch.empty(0, dtype=dtype)).dtype != dtype:
                    raise RuntimeError(_CAST)
        return apply(self, change, *args, **kwargs)

    grad_scaler.step, grad_scaler.update = watched_step, watched_update
    torch.nn.Module._apply = watched_apply  # noqa: SLF001


# ---- the worker as a program: a rank


def _become_rank(words: List[str]) -> None:
    """Become `python WORDS`, one of several under torchrun, which sees its own card alone, as number 0.

    So does `torchrun --virtual-local-rank`, which older ones lack. Only RANK tells the main process then.
    """
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if cards:
        os.environ["CUDA_VISIBLE_DEVICES"] = cards.split(",")[int(os.environ["LOCAL_RANK"])]
        os.environ["LOCAL_RANK"] = "0"
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - the command of the job


if __name__ == "__main__":
    _become_rank(sys.argv[1:])
