"""The parts `lora`, `full`, `jobs` and `billion`: trainings by `launch` beside each other and beside bare scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from gpu.ledger import distance
from gpu.materials import born_in_bf16
from gpu.parts import Row
from gpu.station import FailedTrainingError, Station, Trained, estimated_gb

Method = Literal["lora", "full"]
METHODS: tuple[Method, ...] = ("lora", "full")
RATES = {"lora": 1e-3, "full": 5e-4}
"""Learning rates at which random weights learn without a rise at the start; a model twice as wide has half of them."""
SPARE = 4
"""Steps that a stopped training has left: it must not come to its end."""
PLAIN = "transformers' defaults"


class Way(NamedTuple):
    """A precision as a person asks for it.

    `is_born_in_bf16`: of a model that says so, for which fp16 has an fp32 base.
    """

    words: tuple[str, ...]
    is_born_in_bf16: bool = False

    @property
    def title(self) -> str:
        """What is asked for."""
        return f"`{' '.join(self.words)}`{', a model in bf16' if self.is_born_in_bf16 else ''}"


def ways(method: Method, *, has_bf16: bool, is_rehearsed: bool) -> list[Way]:
    """Return every precision that a card can compute; fp32 is the first."""
    card = ("--profile", "a100_80gb", "--rehearse") if is_rehearsed else ()
    older = ("--profile", "titan_rtx", "--rehearse") if is_rehearsed else ("--profile", "plain")
    fp32, bf16, fp16 = (("--precision", mode) for mode in ("fp32", "bf16", "fp16"))
    found = [Way((*(older if has_bf16 else card), *fp32))]
    if has_bf16:
        found += [Way((*card, *bf16)), Way((*card, *fp32))]  # fp32 has tf32 there
    found.append(Way((*card, *fp16)))
    if method == "lora":
        found.append(Way((*card, *fp16), is_born_in_bf16=True))
    return found


def lora(station: Station) -> Iterator[Row]:
    """Measure the rungs of a LoRA."""
    return rungs(station, "lora")


def full(station: Station) -> Iterator[Row]:
    """Measure the rungs of a full fine-tune."""
    return rungs(station, "full")


def rungs(station: Station, method: Method) -> Iterator[Row]:
    """Train in fp32, as transformers does by default, then in every other precision."""
    sizes = station.sizes
    model = station.model("small", sizes.small)
    rows, drawn = station.rows(sizes.steps * sizes.examples, sizes.tokens)
    sets = _small_sets(station, model, method, rows)
    of_bf16 = {"model": f"host:{born_in_bf16(model)}"}
    first, *others = ways(method, has_bf16=station.has_bf16, is_rehearsed=station.is_rehearsed)
    fp32 = station.launched("sft", sets, first.words)
    plain = station.bare("bare_sft.py", fp32.plan, drawn, is_plain=True)
    yield _rung(station, first.title, fp32, fp32, plain)
    yield {**_rung(station, PLAIN, plain, fp32, plain), **_UNPLANNED}
    for way in others:
        own = {**sets, **(of_bf16 if way.is_born_in_bf16 else {})}
        try:
            trained = station.launched("sft", own, way.words)
        except FailedTrainingError as error:
            yield {**_failed(way.title, error), "ok": False}
        else:
            yield _rung(station, way.title, trained, fp32, plain)


def jobs(station: Station) -> Iterator[Row]:
    """Measure our jobs beside bare scripts."""
    sizes = station.sizes
    examples = sizes.steps * sizes.examples
    model, teacher = station.model("small", sizes.small), station.model("teacher", sizes.teacher)
    rows, drawn = station.rows(examples, sizes.tokens)
    for method in METHODS:
        sets = _small_sets(station, model, method, rows)
        yield _beside_bare(station, f"sft, {method}", sets, drawn)
    rows, drawn = station.rows(examples, sizes.tokens, is_text=True)
    sets = _small_sets(station, model, "full", rows)
    sets |= {"teacher": f"host:{teacher}", "data.eval": f"host:{rows}"}
    yield _beside_bare(station, "distill, full", sets, drawn)


def _beside_bare(station: Station, what: str, sets: dict[str, object], drawn: Path) -> Row:
    """Measure a job, whose name `what` begins with, beside the bare script of the same name."""
    job = what.partition(",")[0]
    try:
        trained = station.launched(job, sets)
        bare = station.bare(f"bare_{job}.py", trained.plan, drawn)
    except FailedTrainingError as error:
        return _failed(what, error)
    return _alike(_pair(station, what, trained, bare), bare)


def billion(station: Station) -> Iterator[Row]:
    """Measure a large model beside bare scripts, and beside transformers' defaults."""
    sizes = station.sizes
    model = station.model("billion", sizes.billion, "bfloat16")
    steps = sizes.billion_steps + SPARE
    rows, drawn = station.rows(steps * sizes.billion_examples, sizes.billion_tokens)
    bare = None
    for method in METHODS:
        sets = {
            **_sets(model, method, rows, steps),
            "batch.global": sizes.billion_examples,
            "settings.max_length": sizes.billion_tokens,
            "settings.learning_rate": RATES[method] / 2,
        }
        try:
            trained = station.stopped("sft", sets, sizes.billion_steps)
            bare = station.bare("bare_sft.py", trained.plan, drawn)
        except FailedTrainingError as error:
            bare = None
            yield _failed(f"sft, {method}", error)
        else:
            yield _alike(_pair(station, f"sft, {method}", trained, bare), bare)
    try:
        plain = station.bare("bare_sft.py", station.planned("sft", sets), drawn, is_plain=True)
    except FailedTrainingError as error:
        yield _failed(f"full, {PLAIN}", error)
    else:
        yield {**_pair(station, f"full, {PLAIN}", plain, bare), **_UNPLANNED}


def _small_sets(station: Station, model: Path, method: Method, rows: Path) -> dict[str, object]:
    sizes = station.sizes
    return {
        **_sets(model, method, rows, sizes.steps),
        "batch.global": sizes.examples,
        "batch.micro": sizes.micro,
        "settings.max_length": sizes.tokens,
        "settings.learning_rate": RATES[method],
    }


def _sets(model: Path, method: Method, rows: Path, steps: int) -> dict[str, object]:
    """Return keys of a job."""
    return {"model": f"host:{model}", "data.train": f"host:{rows}", "method": method, "steps": steps}


# the rows


_UNPLANNED: Row = {"precision": "plain", "estimated_gb": None}
"""What a training by hand has in place of a plan's."""


def _failed(what: str, error: FailedTrainingError) -> Row:
    """Return the row of a training that failed; it costs no other."""
    return {"what": what, "precision": str(error), "ok": False}


def _rung(station: Station, what: str, trained: Trained, fp32: Trained, plain: Trained) -> Row:
    speed, fp32_speed, plain_speed = (_speed(station, training) for training in (trained, fp32, plain))
    return {
        **_figures(station, what, trained),
        "of_fp32": speed / fp32_speed,
        "of_plain": speed / plain_speed,
        "loss": trained.losses[max(trained.losses)] if trained.losses else None,
        "gap_fp32": distance(trained.losses, fp32.losses),
        "gap_plain": distance(trained.losses, plain.losses),
    }


def _pair(station: Station, what: str, trained: Trained, bare: Trained | None) -> Row:
    row: Row = {
        **_figures(station, what, trained),
        "micro": trained.plan.split.micro_batch,
        "mfu": station.on_a_card_only(trained.mfu),
    }
    if bare is not None:
        row |= {
            "bare_tokens_per_s": _speed(station, bare),
            "of_bare": _speed(station, trained) / _speed(station, bare),
            "bare_peak_gb": station.on_a_card_only(bare.ledger.peak_gb),
            "gap_bare": distance(trained.losses, bare.losses),
        }
    return row


def _alike(row: Row, bare: Trained) -> Row:
    """Return the row of a pair, which is not as expected if another optimizer was used by hand."""
    other = bare.ledger.optimizer
    if row["optimizer"] == other:
        return row
    return {**row, "optimizer": f"{row['optimizer']}; bare: {other}", "ok": False}


def _figures(station: Station, what: str, trained: Trained) -> Row:
    return {
        "what": what,
        "precision": trained.plan.ladder[0].title,
        "optimizer": trained.ledger.optimizer,
        "tokens_per_s": _speed(station, trained),
        "peak_gb": station.on_a_card_only(trained.ledger.peak_gb),
        "estimated_gb": estimated_gb(trained.plan),
        "card_gb": station.on_a_card_only(trained.card_gb),
    }


def _speed(station: Station, trained: Trained) -> float:
    return trained.tokens_per_s(station.sizes.warm_steps)
