"""Estimated memory beside measured peaks: `make memory` measures all rows and writes MEMORY.md.

`memory.py measure NUMBER…` measures some rows and prints a JSON line for each. A row is a real training of transformers,
peft and accelerate on this CPU, under the plan of a card: two steps of two micro-batches. The peak is of the second step's
last micro-batch or of its optimizer, in bytes of tensors that are alive. Two operators are computed in float32, as
autocast does on a card and not on a CPU: torch.pow and layer_norm. On a card (`make gpu`) the bytes are those that torch's
allocator counts.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launcher" / "worker"))
sys.path.insert(0, str(Path(__file__).parent))

from memory_rows import FORMS, IN_CI, IN_REHEARSALS, ON_A_CARD, ROWS, TEACHER, Row

from launcher.planning.precision.memory import Training, needed_gb
from launcher.planning.precision.workload import read_workload
from launcher.values.model import read_model
from launcher.values.precision import Precision

__all__ = ["IN_CI", "IN_REHEARSALS", "ON_A_CARD", "ROWS", "estimate", "measured"]

TABLE = Path(__file__).with_name("MEMORY.md")
TOKENS = 256
"""The length of a sample, unless the row says."""
MICRO_BATCHES = 2
CAPABILITY = "8.0"
"""That of the card whose plan is rehearsed."""


class Memory(NamedTuple):
    """A row's peak, in millions of bytes."""

    estimated: float
    measured: float

    @property
    def ratio(self) -> float:
        """The estimate as a share of what was measured."""
        return self.estimated / self.measured


def estimate(row: Row) -> float:
    """Return the estimated peak in millions of bytes."""
    model, teacher = read_model(row.config), read_model(TEACHER)
    workload = read_workload({"max_length": TOKENS, **row.settings}, teacher, model)
    assert model is not None
    assert row.method in ("lora", "qlora", "full")
    return needed_gb(Training(model, row.method, workload), _precision(row), row.micro_batch) * 1000


def _precision(row: Row, capability: str = CAPABILITY) -> Precision:
    names = ("mode", "base_dtype", "trainable_dtype", "autocast_dtype", "scaler")
    values = dict(zip(names, FORMS[row.form], strict=True))
    eps = 1e-4 if row.form == "fp16-native" else 1e-8
    card = {
        "quantization": "nf4" if row.method == "qlora" else None,
        "device": "cuda",
        "capability": capability,
        "attention": row.attention,
        "adam_eps": eps,
        "why": "measured",
    }
    return Precision.model_validate({**values, **card})


def _own_capability() -> str:
    import torch

    return ".".join(map(str, torch.cuda.get_device_capability()))


def measure(row: Row, *, is_on_card: bool = False) -> float:
    """Train as the row says, and return the peak in millions of bytes."""
    import launcher_worker as worker
    import torch
    from accelerate.state import AcceleratorState
    from live_bytes import LiveBytes

    with tempfile.TemporaryDirectory() as name:
        precision = _precision(row, _own_capability() if is_on_card else CAPABILITY)
        _enter_run(Path(name), row, precision, is_rehearsed=not is_on_card)
        AcceleratorState._reset_state(reset_partial_state=True)
        model = worker.prepare(_model(row, Path(name))).train()
        teacher = _load(TEACHER, Path(name)).eval() if "teacher" in row.settings else None
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        accelerator = worker.accelerator()
        model, optimizer = accelerator.prepare(model, _optimizer(row, trained))
        teacher = teacher.to(accelerator.device) if teacher else None
        live, rows = CardBytes() if is_on_card else LiveBytes(), _rows(row).to(accelerator.device)
        with live, contextlib.nullcontext() if is_on_card else _as_on_a_card():
            live.note([*model.parameters(), *model.buffers(), *(teacher.parameters() if teacher else ())])
            live.note([_scales(part) for part in model.parameters()])
            for _ in range(2):
                for _ in range(MICRO_BATCHES):
                    gc.collect()
                    live.peak = live.now
                    with accelerator.accumulate(model):
                        accelerator.backward(_loss(model, teacher, rows, accelerator.autocast))
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(trained, 1.0)
                        optimizer.step()
                        optimizer.zero_grad()
        assert torch.isfinite(torch.stack([parameter.abs().max().float() for parameter in trained])).all()
        return live.peak / 1e6


class CardBytes:
    """LiveBytes of a card, whose allocator counts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def note(self, _tensors: list[Any]) -> None:
        """Do nothing: they are counted."""

    @property
    def now(self) -> int:
        """Bytes that are allocated."""
        import torch

        return torch.cuda.memory_allocated()

    @property
    def peak(self) -> int:
        """The most since the last look began."""
        import torch

        return torch.cuda.max_memory_allocated()

    @peak.setter
    def peak(self, _now: int) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats()


def _enter_run(folder: Path, row: Row, precision: Precision, *, is_rehearsed: bool) -> None:
    """Write the attempt that this process is in from now on."""
    checkpointing = row.settings.get("gradient_checkpointing", False)
    attempt = {
        "run": "memory", "attempt": 1, "seed": 0, "rehearsed": is_rehearsed, "method": row.method, "model": None, "data": {},
        "settings": row.settings, "steps": 2, "save_every_steps": None, "loader_workers": 0,
        "precision": precision.model_dump(mode="json"), "activation_checkpointing": checkpointing,
        "split": {"global_batch": 1, "ranks": 1, "micro_batch": 1, "accumulation": MICRO_BATCHES},
        "folders": {part: str(folder / part) for part in ("artifacts", "checkpoints", "cache")},
    }  # fmt: skip
    (folder / "attempt.json").write_text(json.dumps(attempt))
    os.environ["LAUNCH_ATTEMPT"] = str(folder)


def _load(config: dict[str, object], folder: Path, **more: Any) -> Any:
    """Make a random model, and load it as a script would."""
    import launcher_worker as worker
    import torch
    import transformers

    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(**config)
    transformers.AutoModelForCausalLM.from_config(made).save_pretrained(folder / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "model", **worker.model_arguments(**more)
    )
    model.config.use_cache = False  # as Trainer sets it
    return model


def _model(row: Row, folder: Path) -> Any:
    from peft import LoraConfig, get_peft_model

    model = _load(row.config, folder, attn_implementation=row.attention)
    if row.method == "full":
        return model
    rank = int(row.settings.get("lora_rank", 16))
    return get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))


def _scales(part: Any) -> list[Any]:
    """Return the tensors of bitsandbytes beside a weight in 4 bits: scales, scales of scales, and tables."""
    state = getattr(part, "quant_state", None)
    return [] if state is None else [part for one in (state, state.state2) for part in (one.absmax, one.code)]


def _optimizer(row: Row, trained: list[Any]) -> Any:
    """Make the optimizer in the form that a card gets: foreach, which is torch's default there and not on a CPU."""
    import launcher_worker as worker
    import torch
    import transformers

    name = row.settings.get("optim")
    if name == "auto":
        return worker.adamw(trained, lr=1e-4)
    if name == "sgd":
        return torch.optim.SGD(trained, lr=1e-4, foreach=True)
    if name == "adafactor":
        return transformers.Adafactor(trained, lr=1e-4, relative_step=False, scale_parameter=False)
    kind = {"fused": True} if name == "adamw_torch_fused" else {"foreach": True}
    return torch.optim.AdamW(trained, lr=1e-4, eps=_precision(row).adam_eps, **kind)


def _rows(row: Row) -> Any:
    import torch

    length = int(row.settings.get("max_length", TOKENS))
    return torch.randint(0, int(str(row.config["vocab_size"])), (row.micro_batch, length))


def _loss(model: Any, teacher: Any, rows: Any, autocast: Callable[[], Any]) -> Any:
    """Return the loss of next tokens; with a teacher, plus the distance to its distribution."""
    import torch
    from torch.nn import functional

    outputs = model(input_ids=rows, labels=rows)
    if teacher is None:
        return outputs.loss
    with torch.no_grad(), autocast():
        taught = teacher(input_ids=rows).logits.float()
    student = functional.log_softmax(outputs.logits.float(), dim=-1)
    return outputs.loss + functional.kl_div(
        student, functional.softmax(taught, dim=-1), reduction="batchmean"
    )


class _as_on_a_card:  # noqa: N801 - read as a phrase
    """Compute in float32 what autocast computes so on CUDA alone."""

    def __enter__(self) -> None:
        import torch
        from torch.nn import functional

        self._kept = torch.pow, functional.layer_norm
        power, norm = self._kept

        def wide(tensor: Any) -> Any:
            return tensor.float() if torch.is_autocast_enabled("cpu") and torch.is_tensor(tensor) else tensor

        torch.pow = lambda base, exponent: power(wide(base), exponent)
        functional.layer_norm = lambda values, shape, weight=None, bias=None, eps=1e-5: norm(
            wide(values), shape, wide(weight), wide(bias), eps
        )

    def __exit__(self, *_: object) -> None:
        import torch
        from torch.nn import functional

        torch.pow, functional.layer_norm = self._kept


def measured(numbers: list[int], *, is_on_card: bool = False) -> list[Memory]:
    """Measure rows in one process of its own; on a card those of ON_A_CARD, one a process: each leaves something there."""
    rows = ON_A_CARD if is_on_card else ROWS
    words = [sys.executable, __file__, "measure-on-card" if is_on_card else "measure", *map(str, numbers)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    peaks = [json.loads(line)["peak"] for line in done.stdout.splitlines() if line.startswith("{")]
    return [Memory(estimate(rows[number]), peak) for number, peak in zip(numbers, peaks, strict=True)]


def table(found: list[Memory]) -> str:
    """Return all rows as Markdown."""
    import peft
    import torch
    import transformers

    head = ["training", "method", "precision", "estimated, MB", "measured, MB", "ratio"]
    rows = [head, ["---"] * len(head)]
    for row, memory in zip(ROWS, found, strict=True):
        figures = [f"{memory.estimated:.1f}", f"{memory.measured:.1f}", f"{memory.ratio:.2f}"]
        rows.append([row.title, row.method, row.form, *figures])
    ratios = sorted(memory.ratio for memory in found)
    versions = f"torch {torch.__version__.partition('+')[0]}, transformers {transformers.__version__}, peft {peft.__version__}"
    return f"""\
# Estimated memory beside measured peaks

Written by `make memory`; do not edit.

{time.strftime("%Y-%m-%d")}. {versions}. Small Llama and GPT-2 models on a CPU, under the plan of a card: the bytes of all tensors that are
alive at the peak of a step of two micro-batches. AdamW has its foreach form, which is a card's default. torch.pow and
layer_norm compute in float32 under autocast, as on a card. A kernel's own memory, fragmentation and CUDA's share are not
in it: for these a plan leaves 1 GB and 4 % of the card. QLoRA is bitsandbytes on a CPU, with its scales. 8-bit optimizers need a card
and are not measured.

Ratios: {ratios[0]:.2f} to {ratios[-1]:.2f}.

""" + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def main() -> None:
    """Measure some rows, or all and write the table."""
    if sys.argv[1:2] in (["measure"], ["measure-on-card"]):
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        is_on_card = sys.argv[1] == "measure-on-card"
        rows = ON_A_CARD if is_on_card else ROWS
        for number in map(int, sys.argv[2:]):
            peak = measure(rows[number], is_on_card=is_on_card)
            print(json.dumps({"row": number, "peak": peak}), flush=True)
        return
    TABLE.write_text(table(measured(list(range(len(ROWS))))))
    print(TABLE.read_text())


if __name__ == "__main__":
    main()
