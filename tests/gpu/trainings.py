"""The parts `lora`, `full`, `jobs` and `billion`: trainings by `launch` beside each other and beside bare scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


class Way(NamedTuple):
    """A precision as a person asks for it. `is_born_in_bf16`: of a model that says so, for which fp16 has an fp32 base."""

    words: tuple[str, ...]
    is_born_in_bf16: bool = False


def ways(capability: tuple[int, int], method: Method, *, is_rehearsed: bool) -> list[Way]:
    """Return every precision that a card of this capability can compute; fp32 is the first."""
    card: tuple[str, ...] = ("--profile", "a100_80gb", "--rehearse") if is_rehearsed else ()
    older: tuple[str, ...] = (
        ("--profile", "titan_rtx", "--rehearse") if is_rehearsed else ("--profile", "plain")
    )
    has_bf16 = capability >= (8, 0)
    found = [Way((*(older if has_bf16 else card), "--precision", "fp32"))]
    if has_bf16:
        found += [
            Way((*card, "--precision", "bf16")),
            Way((*card, "--precision", "fp32")),
        ]  # which is tf32 there
    found.append(Way((*card, "--precision", "fp16")))
    if method == "lora":
        found.append(Way((*card, "--precision", "fp16"), is_born_in_bf16=True))
    return [*found, Way((*card, "--precision", "fp16-native"))]


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
    rows, drawn = station.rows(sizes.steps, sizes.tokens)
    born = born_in_bf16(model)
    sets = {**_sets(station, model, method, rows, sizes.tokens, sizes.steps), "batch.micro": sizes.micro}
    first, *others = ways(station.capability, method, is_rehearsed=station.is_rehearsed)
    fp32 = station.launched("sft", sets, first.words)
    plain = station.bare("bare_sft.py", bare_settings(fp32, drawn, is_plain=True))
    yield _rung(station, fp32.planned.ladder[0].title, fp32, fp32, plain)
    yield _rung(station, "plain: transformers' defaults", plain, fp32, plain)
    for way in others:
        own = {**sets, "model": f"host:{born}"} if way.is_born_in_bf16 else sets
        try:
            trained = station.launched("sft", own, way.words)
        except FailedTrainingError as error:  # the others are measured all the same
            yield {"precision": f"{' '.join(way.words)}: {error}", "ok": False}
        else:
            yield _rung(station, trained.planned.ladder[0].title, trained, fp32, plain)


def jobs(station: Station) -> Iterator[Row]:
    """Measure our jobs beside bare scripts."""
    sizes = station.sizes
    model, teacher = station.model("small", sizes.small), station.model("teacher", sizes.teacher)
    rows, drawn = station.rows(sizes.steps, sizes.tokens)
    for method in METHODS:
        sets = {**_sets(station, model, method, rows, sizes.tokens, sizes.steps), "batch.micro": sizes.micro}
        trained = station.launched("sft", sets)
        bare = station.bare("bare_sft.py", bare_settings(trained, drawn))
        yield _pair(station, f"sft, {method}", trained, bare)
    rows, drawn = station.rows(sizes.steps, sizes.tokens, is_text=True)
    sets = {**_sets(station, model, "full", rows, sizes.tokens, sizes.steps), "batch.micro": sizes.micro}
    sets |= {"teacher": f"host:{teacher}", "data.eval": f"host:{rows}"}
    trained = station.launched("distill", sets)
    bare = station.bare("bare_distill.py", {**bare_settings(trained, drawn), "teacher": str(teacher)})
    yield _pair(station, "distill, full", trained, bare)


def billion(station: Station) -> Iterator[Row]:
    """Measure a large model beside bare scripts, and beside transformers' defaults."""
    sizes = station.sizes
    model = station.model("billion", sizes.billion, "bfloat16")
    steps = sizes.billion_steps + 1  # the last one is not reached
    rows, drawn = station.rows(steps, sizes.billion_tokens)
    for method in METHODS:
        sets = _sets(station, model, method, rows, sizes.billion_tokens, steps)
        sets["settings.learning_rate"] = RATES[method] / 2
        trained = station.stopped("sft", sets, sizes.billion_steps)
        bare = station.bare("bare_sft.py", bare_settings(trained, drawn))
        yield _pair(station, f"sft, {method}", trained, bare)
    plain = station.bare("bare_sft.py", bare_settings(trained, drawn, is_plain=True))
    yield {
        "what": "full, transformers' defaults",
        "precision": "plain",
        "micro": trained.planned.split.micro_batch,
        "bare_tokens_per_s": _speed(station, plain, trained),
        "bare_peak_gb": station.on_a_card_only(plain.ledger.peak_gb),
        "gap_bare": distance(plain.losses, bare.losses),
    }


def _sets(
    station: Station, model: Path, method: Method, rows: Path, tokens: int, steps: int
) -> dict[str, object]:
    """Return the keys of a job."""
    return {
        "model": f"host:{model}",
        "data.train": f"host:{rows}",
        "method": method,
        "steps": steps,
        "batch.global": station.sizes.examples,
        "settings.max_length": tokens,
        "settings.learning_rate": RATES[method],
    }


def bare_settings(trained: Trained, drawn: Path, *, is_plain: bool = False) -> Mapping[str, object]:
    """Return a bare script's settings: those of a run, without its precision if it is plain."""
    plan = trained.planned
    assert plan.model is not None
    return {
        "model": plan.model.value,
        "rows": str(drawn),
        "method": plan.method,
        "steps": plan.steps,
        "micro": plan.split.micro_batch,
        "accumulation": plan.split.accumulation,
        "learning_rate": plan.settings["learning_rate"],
        "lora_rank": plan.settings.get("lora_rank"),
        "precision": None if is_plain else plan.ladder[0].model_dump(mode="json"),
    }


def _speed(station: Station, trained: Trained, like: Trained) -> float:
    """Return the tokens a second of a training whose batch is that of another one."""
    plan = like.planned
    tokens = plan.split.global_batch * int(plan.settings["max_length"])
    return tokens / trained.ledger.step_s(station.sizes.warm_steps)


def _rung(station: Station, title: str, trained: Trained, fp32: Trained, plain: Trained) -> Row:
    speed = _speed(station, trained, fp32)
    return {
        "precision": title,
        "tokens_per_s": speed,
        "of_fp32": speed / _speed(station, fp32, fp32),
        "of_plain": speed / _speed(station, plain, fp32),
        "peak_gb": station.on_a_card_only(trained.ledger.peak_gb),
        "estimated_gb": estimated_gb(trained.plan) if trained.plan else None,
        "card_gb": station.on_a_card_only(trained.card_gb),
        "loss": trained.losses[max(trained.losses)] if trained.losses else None,
        "gap_fp32": distance(trained.losses, fp32.losses),
        "gap_plain": distance(trained.losses, plain.losses),
    }


def _pair(station: Station, what: str, trained: Trained, bare: Trained) -> Row:
    speed, other = (_speed(station, one, trained) for one in (trained, bare))
    return {
        "what": what,
        "precision": trained.planned.ladder[0].title,
        "micro": trained.planned.split.micro_batch,
        "tokens_per_s": speed,
        "bare_tokens_per_s": other,
        "of_bare": speed / other,
        "mfu": station.on_a_card_only(trained.mfu),
        "peak_gb": station.on_a_card_only(trained.ledger.peak_gb),
        "bare_peak_gb": station.on_a_card_only(bare.ledger.peak_gb),
        "estimated_gb": estimated_gb(trained.planned),
        "card_gb": station.on_a_card_only(trained.card_gb),
        "gap_bare": distance(trained.losses, bare.losses),
    }
