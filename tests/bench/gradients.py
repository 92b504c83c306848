"""How close the gradient of each rung is to fp32's: `gradients.py small|large` prints a JSON line a rung and method.

Every rung that a ladder of any profile has is measured, and what is given on request alone. The worker's own `prepare`,
autocast and scaler compute a card's precision on this CPU; tf32 cannot be rehearsed on one, and is left out. The model
is a random Llama whose weights are exact in bf16, so that no precision starts from other weights than fp32 does.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launcher" / "worker"))

import launcher_worker as worker
import torch
import transformers
from peft import LoraConfig, get_peft_model

from launcher.config.lookup import Lookup
from launcher.errors import RefusedError
from launcher.planning.precision.ladder import MODES, LadderInputs, Method, ladder
from launcher.planning.precision.workload import Workload
from launcher.values.model import Model
from launcher.values.precision import Platform, Precision

METHODS: tuple[Method, ...] = ("lora", "full")
MAX_RETRIES = 20
"""How often a scaler may halve its scale before the first finite gradient."""


@dataclasses.dataclass(frozen=True)
class Size:
    """A training: `accumulation` micro-batches of one sequence make a step, of which the first `measured` are computed.

    Each is divided by `accumulation`, and it is this division that makes gradients small: the rest would only add to them.
    """

    vocabulary: int
    hidden: int
    layers: int
    tokens: int
    accumulation: int
    measured: int


SIZES = {
    "small": Size(vocabulary=32768, hidden=64, layers=2, tokens=128, accumulation=1024, measured=1),
    "large": Size(vocabulary=32768, hidden=192, layers=4, tokens=512, accumulation=256, measured=4),
}
"""Both have 131,072 tokens a step, as a global batch of 64 sequences of 2,048 has."""


class Form(NamedTuple):
    """What of a precision changes the numbers of a gradient."""

    mode: str
    base_dtype: str
    trainable_dtype: str
    autocast_dtype: str | None
    scaler: bool
    adam_eps: float


CONTROLS = (
    ("fp16 base, fp32 adapters, no scaler", Form("fp16", "float16", "float32", None, False, 1e-8)),
    (
        "fp16 base, fp32 adapters, scaler without autocast",
        Form("fp16", "float16", "float32", None, True, 1e-8),
    ),
)
"""Forms of a LoRA that `Precision` refuses: what the first loses is why; the second gains nothing over autocast."""


class Rung(NamedTuple):
    """A form of a precision, with one precision of it, and whether a ladder chooses it by itself."""

    form: Form
    title: str
    is_automatic: bool


class Gradient(NamedTuple):
    """A rung's gradient beside fp32's: the cosine between them, the ratio of norms, and the share that is exactly zero."""

    method: str
    title: str
    is_automatic: bool
    cosine: float
    norm_ratio: float
    zeros: float


def rungs(method: Method) -> list[Rung]:
    """Return every form that any ladder has for a method, fp32 first, and the controls."""
    automatic: dict[Form, Precision] = {}
    requested: dict[Form, Precision] = {}
    for inputs in _inputs(method):
        for request in ("auto", *MODES):
            try:
                found = ladder(inputs, request).rungs
            except RefusedError:
                continue
            known = automatic if request == "auto" else requested
            for precision in found:
                known.setdefault(_form(precision), precision)
    everything = {**requested, **automatic}
    found = [
        Rung(form, precision.title.replace(" with tf32", ""), form in automatic)
        for form, precision in sorted(everything.items(), key=lambda one: (one[0].mode != "fp32", one[0][:2]))
    ]
    controls = CONTROLS if method == "lora" else ()
    return [*found, *(Rung(form, title, is_automatic=False) for title, form in controls)]


def _inputs(method: Method) -> Iterator[LadderInputs]:
    """Every card, on the newest software, with models of both halves that fit well, barely, and not at all."""
    platform = Platform(torch="2.13.0", macos="15.1", apple_chip="Apple M4 Pro", has_cpu_bf16=True)
    shapes = [
        Model(
            dtype=dtype,
            parameters=parameters,
            layers=layers,
            hidden_size=hidden,
            head_dim=128,
            vocab_size=32000,
        )
        for dtype in ("float32", "float16", "bfloat16")
        for parameters, layers, hidden in ((10**9, 16, 2048), (7 * 10**9, 32, 4096), (13 * 10**9, 40, 5120))
    ]
    for profile, model in itertools.product(Lookup().profiles.values(), (None, *shapes)):
        yield LadderInputs(
            profile,
            method,
            model,
            platform,
            workload=Workload(optimizer="adamw-planned"),
            takes_bf16_weights=True,
        )


def _form(precision: Precision) -> Form:
    return Form(*(getattr(precision, name) for name in Form._fields))


def enter_run(folder: Path, rung: Rung, method: Method) -> None:
    """Write the attempt that this process is in from now on."""
    place = Path(tempfile.mkdtemp(dir=folder))
    precision = {
        **rung.form._asdict(),
        "device": "cuda",
        "capability": "8.0",
        "tf32": False,
        "why": "measured",
    }
    attempt = {
        "run": "gradients", "attempt": 1, "seed": 0, "rehearsed": True, "method": method, "model": None, "data": {},
        "settings": {}, "steps": 1, "save_every_steps": None, "loader_workers": 0, "precision": precision,
        "split": {"global_batch": 1, "ranks": 1, "micro_batch": 1, "accumulation": 1},
        "folders": {part: str(place / part) for part in ("artifacts", "checkpoints", "cache")},
    }  # fmt: skip
    (place / "attempt.json").write_text(json.dumps(attempt))
    os.environ["LAUNCH_ATTEMPT"] = str(place)


def save_base(folder: Path, size: Size) -> None:
    """Save the model that all rungs load."""
    torch.manual_seed(0)
    heads = size.hidden // 32
    config = transformers.LlamaConfig(
        vocab_size=size.vocabulary, hidden_size=size.hidden, intermediate_size=2 * size.hidden,
        num_hidden_layers=size.layers, num_attention_heads=heads, num_key_value_heads=heads,
        max_position_embeddings=size.tokens,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).float()
    model.save_pretrained(folder)


def gradient(base: Path, size: Size, method: Method) -> torch.Tensor:
    """Return the gradient of one step under the attempt in force, as one float32 vector."""
    model: Any = transformers.LlamaForCausalLM.from_pretrained(base, **worker.model_arguments())
    torch.manual_seed(1)
    if method == "lora":
        model = get_peft_model(
            model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", init_lora_weights=False)
        )
    model = worker.prepare(model)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, scaler = torch.optim.SGD(trainable, lr=0.0), worker.scaler()
    for _ in range(MAX_RETRIES):
        optimizer.zero_grad()
        dice = torch.Generator().manual_seed(2)
        for _ in range(size.measured):
            rows = torch.randint(0, size.vocabulary, (1, size.tokens), generator=dice)
            with worker.autocast():
                loss = model(input_ids=rows, labels=rows).loss / size.accumulation
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        found = torch.cat([parameter.grad.float().flatten() for parameter in trainable])
        if not scaler.is_enabled() or found.isfinite().all():
            return found
        scaler.step(optimizer)
        scaler.update()
    raise RuntimeError(f"no finite gradient after {MAX_RETRIES} scales")


def measure(size: Size) -> Iterator[Gradient]:
    """Measure every rung of both methods; the first of each is fp32 itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_base(folder / "base", size)
        for method in METHODS:
            exact = None
            for rung in rungs(method):
                enter_run(folder, rung, method)
                found = gradient(folder / "base", size, method)
                exact = found if exact is None else exact
                yield Gradient(
                    method, rung.title, rung.is_automatic,
                    torch.nn.functional.cosine_similarity(found.double(), exact.double(), dim=0).item(),
                    (found.double().norm() / exact.double().norm()).item(),
                    (found == 0).double().mean().item(),
                )  # fmt: skip


def main() -> None:
    """Print what is found as it is found."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    show = functools.partial(print, flush=True)
    for found in measure(SIZES[sys.argv[1]]):
        show(json.dumps(found._asdict()))


if __name__ == "__main__":
    main()
