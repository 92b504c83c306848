"""The parts `guard`, `start` and `memory`: what launcher costs a step, how long it takes to the first one, and how well it estimates."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from bench import memory as memory_bench
from gpu.parts import Row
from gpu.station import Station, Trained

PAIRS = 60
START_STEPS = 3


class Batch(NamedTuple):
    """A step's batch: few tokens are the hardest case."""

    rows: int
    tokens: int


def guard(station: Station) -> Iterator[Row]:
    """Measure steps with launcher and without it, in turn."""
    from bench import (
        guard as guard_bench,  # it loads torch and transformers, which no test's collection needs
    )
    from bench.guard import TRAININGS, Setup

    batches = [Batch(1, 16)] if station.is_rehearsed else [Batch(1, 64), Batch(8, 512)]
    for what in TRAININGS:
        for batch in batches:
            setup = (
                Setup(what, "narrow", 4, "cpu", *batch)
                if station.is_rehearsed
                else Setup(what, "wide", PAIRS, "cuda", *batch)
            )
            figures = guard_bench.in_a_process(setup)
            yield {
                "what": what,
                "parameters": figures["parameters"],
                "tokens": batch.rows * batch.tokens,
                "step_ms": 1000 * figures["step_s"],
                "cost_ms": 1000 * figures["paired_s"],
                "low_ms": 1000 * figures["low_s"],
                "high_ms": 1000 * figures["high_s"],
                "first_ms": 1000 * figures["first_s"],
                "share": figures["paired_s"] / figures["step_s"],
            }


def start(station: Station) -> Iterator[Row]:
    """Measure the time from a command to its first step, by `launch` and by hand, in turn."""
    sizes = station.sizes
    model = station.model("small", sizes.small)
    rows, drawn = station.rows(START_STEPS * sizes.examples, sizes.tokens)
    station.client.is_forked = False  # a person's command starts a new Python
    sets = {
        "model": f"host:{model}", "data.train": f"host:{rows}", "method": "lora", "steps": START_STEPS,
        "batch.global": sizes.examples, "batch.micro": sizes.micro, "settings.max_length": sizes.tokens,
    }  # fmt: skip
    launched, bare = [], []
    for _ in range(sizes.rounds):
        launched.append(station.launched("sft", sets))
        bare.append(station.bare("bare_sft.py", launched[-1].plan, drawn))
    yield _times("`launch`", [_first_step_s(training) for training in launched])
    yield _times("… of it to the script's first line", [_first_line_s(training) for training in launched])
    yield _times("the bare script", [_first_step_s(training) for training in bare])
    yield _times("… of it to its first line", [_first_line_s(training) for training in bare])


def _first_step_s(trained: Trained) -> float:
    return float(trained.ledger.steps[0]["time"] - trained.began)


def _first_line_s(trained: Trained) -> float:
    return float(trained.ledger.lines[0]["time"] - trained.began)


def _times(what: str, seconds: list[float]) -> Row:
    return {
        "what": what,
        "seconds": statistics.median(seconds),
        "low_s": min(seconds),
        "high_s": max(seconds),
    }


def memory(station: Station) -> Iterator[Row]:
    """Measure peaks beside their estimates, a process for each; one that fails costs no other."""
    is_on_card = not station.is_rehearsed
    rows = memory_bench.ON_A_CARD if is_on_card else memory_bench.ROWS
    for number in range(len(rows)) if is_on_card else memory_bench.IN_REHEARSALS:
        row = rows[number]
        if row.is_bf16 and not station.has_bf16:
            continue
        title: Row = {
            "what": f"{row.title}, {row.micro_batch} samples",
            "method": row.method,
            "precision": row.form,
            "estimated_mb": memory_bench.estimate(row),
        }
        try:
            (measured,) = memory_bench.measured([number], is_on_card=is_on_card)
        except subprocess.CalledProcessError:
            yield {**title, "measured_mb": "failed, see the log", "ok": False}
        else:
            yield {**title, "measured_mb": measured.measured, "ratio": measured.ratio}
