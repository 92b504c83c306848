"""The curves of one job under every rung, several splits and world sizes: `make curves` runs them all, and writes
docs/same-curve.md, its picture, and CURVES.json.

`curves.py --job distill --steps 100` runs another job for another number of steps. On a machine with a card all runs are on that card;
without one, the plans of some cards are rehearsed on the CPU: dtypes, autocast, scaler and split are the card's, speed is not.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from curves_page import SUCCEEDED, Curve, Measurement, draw, page, picture_name, read, row, write
from testbed.client import REPOSITORY, Client, kill_all_of

from launcher.agent.record import precision_evidence
from launcher.agent.record.rundir import evidence_folder
from launcher.runs.launch.cards import REFUSED
from launcher.values.plan import Split
from launcher.values.precision import Precision

REHEARSED = ("titan_rtx", "p100", "a100_40gb")
"""The cards whose plans are rehearsed where there is none."""
STEPS = 40
BATCH = 32
SEED = 0
MICRO_BATCHES = (8, 4, 2)
WORLD_SIZES = (2, 4)
LONGEST_S = 1800
PAGE = REPOSITORY / "docs" / "same-curve.md"
NUMBERS = Path(__file__).with_name("CURVES.json")


# values, and the plan of all runs


class Card(NamedTuple):
    """A card and the precisions of the job on it: its rungs, and those that only a request gives.

    `words` are how `launch` is asked for it.
    """

    name: str
    words: tuple[str, ...]
    rungs: tuple[Precision, ...]
    on_request: tuple[Precision, ...]

    @property
    def fp32(self) -> int:
        """The index of the rung that computes in fp32 alone."""
        return next(n for n, rung in enumerate(self.rungs) if rung.mode == "fp32" and not rung.tf32)


class Way(NamedTuple):
    """One run: the precision that it must have, the words that ask for it, and the rungs that it must not begin with."""

    name: str
    card: str
    precision: Precision
    words: tuple[str, ...]
    skipped: tuple[Precision, ...] = ()
    is_on_request: bool = False


def ways(host: Card, rehearsed: list[Card], micro_batch: int, cards: int) -> Iterator[Way]:
    """Yield all runs, the one that the others are compared to first.

    `micro_batch` is the one of this first run, and `cards` how many cards of its kind the host has.
    """
    yield _on_rung(host, host.fp32, f"{host.name}, fp32")
    for size in MICRO_BATCHES:
        if size < micro_batch:
            more = ("--set", f"batch.micro={size}")
            yield _on_rung(host, host.fp32, f"{host.name}, fp32, micro-batch {size}", more)
    for ranks in WORLD_SIZES:
        card = host if cards >= ranks else next(iter(rehearsed), None)
        if card is not None:
            more = ("--set", f"batch.micro={MICRO_BATCHES[0]}")
            yield _on_rung(card, card.fp32, f"{card.name}, fp32, {ranks} ranks", more, ranks)
    modes = {rung.mode for card in (host, *rehearsed) for rung in card.rungs}
    for card in (host, *rehearsed):
        for number in range(len(card.rungs)):
            if (card, number) != (host, host.fp32):
                mode = card.rungs[number].mode
                yield _on_rung(card, number, f"{card.name}, rung {number + 1}, {mode}")
        for precision in card.on_request:
            if precision.mode not in modes:  # rehearsed once: a CPU computes a mode alike for all cards
                modes.add(precision.mode)
                words = (*card.words, *_cards(precision, 1), "--precision", precision.mode)
                name = f"{card.name}, {precision.mode} on request"
                yield Way(name, card.name, precision, words, is_on_request=True)


def _on_rung(card: Card, number: int, name: str, more: tuple[str, ...] = (), ranks: int = 1) -> Way:
    rung = card.rungs[number]
    words = (*card.words, *_cards(rung, ranks), *more)
    return Way(name, card.name, rung, words, card.rungs[:number])


def _cards(precision: Precision, count: int) -> tuple[str, ...]:
    """Return the words for a number of cards, which only CUDA's are asked for."""
    return ("--gpus", str(count)) if precision.device == "cuda" else ()


# effects


class Bench:
    """A user's home in which a job is run in one way after the other."""

    def __init__(self, client: Client, job: str, steps: int) -> None:
        self.client, self.job, self.steps = client, job, steps
        self.host = self._ask("probe")
        changed = {
            "steps": steps,
            "seed": SEED,
            "batch.global": BATCH,
            "attempts": 1,  # no remedy: a precision that fails is not replaced by the next one
            "inject": "true",  # the start-up hook sees what ran
            "settings.logging_steps": 1,
            "settings.eval_limit": 8,
        }
        pairs = (("--set", f"{key}={value}") for key, value in changed.items())
        self._words = ("--job", job, *(word for pair in pairs for word in pair))

    def _ask(self, *words: str) -> Any:
        return json.loads(self.client.ok(*words, "--json"))

    def card(self, name: str | None) -> Card:
        """Ask for the precisions on a card; on the host's own if it has no name."""
        profile = ("--profile", name) if name else ()
        words = ("explain", "--job", self.job, *profile)
        ladder = self._ask(*words)
        rungs = tuple(map(Precision.model_validate, ladder["ladder"]))
        modes = dict.fromkeys(other["mode"] for other in ladder["excluded"] if other["on_request"])
        requested = (self._ask(*words, "--precision", mode)["ladder"] for mode in modes)
        on_request = tuple(Precision.model_validate(rungs[0]) for rungs in requested)
        return Card(ladder["profile"], ("--rehearse", *profile) if name else (), rungs, on_request)

    def micro_batch(self, card: Card) -> int:
        """Ask for the micro-batch that a plan for a card has."""
        return int(self._ask("--dry-run", *self._words, *card.words)["plan"]["split"]["micro_batch"])

    def run(self, way: Way) -> Curve:
        """Run the job in one way. Whatever goes wrong is the state of the curve."""
        began = time.monotonic()
        curve = Curve(
            way.name, way.precision.mode, way.precision.title, "-", "", not way.is_on_request, 0.0, {}
        )
        try:
            self._skip(way)
            curve = self._measured(way, curve)
        except subprocess.TimeoutExpired:
            curve = curve._replace(state=f"failed: no end after {LONGEST_S} s")
        except (AssertionError, ValueError, KeyError) as error:  # of the client, or an answer that is none
            last = (str(error).strip() or "-").splitlines()[-1]
            curve = curve._replace(state=f"failed: {type(error).__name__}: {last}")
        finally:
            for folder in (self.client.home / ".launch" / "runs").glob("*"):
                kill_all_of(folder)
        return curve._replace(seconds=time.monotonic() - began)

    def _measured(self, way: Way, curve: Curve) -> Curve:
        """Launch the job, and return its curve with split, losses and state."""
        done = self.client.run("--json", *self._words, *way.words, timeout=LONGEST_S)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        plan = next((line["plan"] for line in lines if line["kind"] == "plan"), None)
        end = next((line for line in lines if line["kind"] == "end" and "state" in line), None)
        if plan is None or end is None:
            why = (done.stderr.strip() or "no word of why").splitlines()[0]
            return curve._replace(state=f"not launched: {why.removeprefix(REFUSED)}")
        losses, report = self._losses(end["run"]), self._ask("explain", end["run"])
        return curve._replace(
            precision=f"{curve.precision}{note_on_tf32(way.precision, report)}",
            split=Split.model_validate(plan["split"]).title.replace("cards", "ranks"),
            losses=losses,
            state=fault_of(way.precision, plan, end, report) or gap_in(losses, self.steps) or SUCCEEDED,
        )

    def _skip(self, way: Way) -> None:
        """Let the plan begin on the rung of a way: the host's records say that those above it have failed there.

        A request names a mode, not a rung, so nothing else begins on, for example, fp32 without tf32.
        """
        folder = evidence_folder(str(self.client.home / ".launch"), self.host["host_id"])
        shutil.rmtree(folder, ignore_errors=True)
        plan = self._ask("--dry-run", *self._words, *way.words)["plan"]
        for precision in way.skipped:
            key = {"torch": None, "model": None, "trainable": None, "precision": precision.digest}
            record = {"version": 1, "card": way.card, "driver": precision_evidence.driver(), "key": key}
            named = {name: plan[name] for name in ("model", "method", "job")}
            about = {"proof": None, "failed": "nan-divergence", "measured": None, "run": "make-curves"}
            precision_evidence.keep(folder, {**record, **named, **about, "time": time.time()})

    def _losses(self, run: str) -> dict[int, float]:
        lines = map(json.loads, self.client.ok("metrics", run, "--json").splitlines())
        return {
            line["step"]: float(line["value"])
            for line in lines
            if line["name"] == "loss" and line["rank"] == 0
        }


def fault_of(precision: Precision, plan: dict[str, Any], end: dict[str, Any], report: dict[str, Any]) -> str:
    """Return what is wrong with a run that has ended and should have had a precision; empty if nothing is."""
    first = Precision.model_validate(plan["ladder"][0])
    evidence = end["evidence"] or {}
    if end["state"] != SUCCEEDED:
        step = f", step {evidence['step']}" if evidence.get("step") is not None else ""
        return f"{end['state']}: {evidence.get('class') or end['reason']}{step}"
    if first.digest != precision.digest:
        return f"failed: the plan began with {first.title}"
    return "" if report["verdict"] == "as-wanted" else f"failed: {report['sentence']}"


def gap_in(losses: dict[int, float], steps: int) -> str:
    """Return the first step of which a run has no loss; empty if it has all."""
    missing = [step for step in range(1, steps + 1) if step not in losses]
    return f"failed: no loss of step {missing[0]}" if missing else ""


def note_on_tf32(precision: Precision, report: dict[str, Any]) -> str:
    """Return what a title that says tf32 must add in a rehearsal, which has none; else nothing."""
    has_tf32 = any(line["name"] == "tf32" and line["ran"] == "on" for line in report["rows"])
    return " (no tf32 on a CPU)" if precision.mode == "fp32" and precision.tf32 and not has_tf32 else ""


@contextlib.contextmanager
def home() -> Iterator[Client]:
    """Make a user's home for the runs, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="launch-bench-"))
    try:
        yield Client(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(job: str, steps: int) -> Measurement:
    """Run a job in all ways one behind the other, and print each as it ends."""
    began = time.monotonic()
    curves: list[Curve] = []
    with home() as client:
        bench = Bench(client, job, steps)
        own = bench.card(None)
        is_rehearsed = own.rungs[0].device == "cpu"
        rehearsed = [bench.card(name) for name in REHEARSED] if is_rehearsed else []
        for way in ways(own, rehearsed, bench.micro_batch(own), len(bench.host["gpus"])):
            curves.append(bench.run(way))
            print("  ".join([*row(curves[-1], curves[0]), f"{curves[-1].seconds:.0f} s"]), flush=True)
        where = place(bench.host)
    return Measurement(
        job=job,
        date=time.strftime("%Y-%m-%d"),
        where=where,
        is_rehearsed=is_rehearsed,
        torch=version("torch"),
        transformers=version("transformers"),
        steps=steps,
        batch=BATCH,
        seed=SEED,
        seconds=time.monotonic() - began,
        curves=tuple(curves),
    )


def place(host: dict[str, Any]) -> str:
    """Return where the runs were: the cards and their driver, or that there is none."""
    if host["profile"] == "cpu":
        return f"rehearsed on a CPU with {host['cpus']} cores, no card"
    cards = collections.Counter(f"{gpu['name']}, driver {gpu['driver']}" for gpu in host["gpus"])
    return (
        "; ".join(f"{count} x {card}" for card, count in cards.items())
        or host["apple_chip"]
        or host["profile"]
    )


def main() -> None:
    """Measure, and write page, picture and numbers; exit with 1 if a run failed that must not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=("sft", "distill"), default="sft")
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    measured = measure(asked.job, asked.steps)
    measurements = list({one.job: one for one in (*read(NUMBERS), measured)}.values())
    write(measurements, NUMBERS)
    draw(measured, PAGE.with_name(picture_name(asked.job)))
    PAGE.write_text(page(measurements))
    sys.exit(measured.has_failed)


if __name__ == "__main__":
    main()
