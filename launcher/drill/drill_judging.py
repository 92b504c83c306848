"""Judge a run of `launch drill` by its ledger and the state of the host, not by its own record."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from launcher.drill.drill_outcome import FAULTS, INTERVAL, SAMPLES, STEPS, Fault, Planned
from launcher.errors import UsageError
from launcher.values.base import Record
from launcher.values.parsing import unknown_name


class LedgerLine(Record):
    """A line of the ledger: a start after a step, a step that begins, the fault, or the end.

    Times are the host's.
    """

    time: float | None = None
    begin: int | None = None
    step: int | None = None
    samples: tuple[int, ...] = ()
    hurt: str | None = None
    end: int | None = None


class TrainingStart(NamedTuple):
    """A start of the training: the step after which it began, and its lines."""

    begin: int
    lines: list[LedgerLine]

    @property
    def steps(self) -> list[LedgerLine]:
        """The lines of the steps that began after this start."""
        return [line for line in self.lines if line.step is not None]

    @property
    def last(self) -> int:
        """The number of the last step that began after this start."""
        return max((line.step or 0 for line in self.steps), default=self.begin)


class WitnessLedger(NamedTuple):
    """A ledger's content: all starts, the number of starts before the fault, and the number of ends."""

    starts: list[TrainingStart]
    starts_before: int | None
    ends: int


class RunObservation(NamedTuple):
    """A run as seen from outside after its end: its ledger, its model, and its recorded end.

    `differing` are the record's files whose local copy differs; `left` are remaining processes and
    containers.
    """

    ledger: WitnessLedger
    model: str
    state: str
    reason: str | None
    differing: Collection[str]
    left: Sequence[str]


class DrillJudgement(NamedTuple):
    """The problems found, the number of steps trained again, and the seconds without a step."""

    problems: tuple[str, ...]
    lost: int
    silent_s: float | None


def chosen(words: Collection[str], runtime: str) -> list[Planned]:
    """Return the faults that `--fault` names, by default all that are possible with a runtime.

    A word is a fault, or `FAULT@STEP`. Raises UsageError for any other word, and for a step outside the
    fault's range.
    """
    known = {fault.name: fault for fault in FAULTS}
    planned = [_planned(word, known) for word in words] or [Planned(fault) for fault in FAULTS]
    for one in planned if words else ():
        if runtime not in one.fault.runtimes:
            where = " or ".join(one.fault.runtimes)
            raise UsageError(f"--fault {one.name}: only with runtime {where}; this drill runs {runtime}")
    return [one for one in planned if runtime in one.fault.runtimes]


def _planned(word: str, known: dict[str, Fault]) -> Planned:
    name, _, step = word.partition("@")
    if name not in known:
        raise unknown_name("fault", name, known, looked_in="launch drill --dry-run")
    fault = known[name]
    if not step:
        return Planned(fault)
    if not re.fullmatch("[0-9]{1,4}", step) or not fault.first <= int(step) < STEPS:
        raise UsageError(f"--fault {word}: the step is a number from {fault.first} to {STEPS - 1}")
    return Planned(fault, int(step))


def read_ledger(text: str) -> WitnessLedger:
    """Read a ledger. Invalid lines, and lines cut short by a kill, are skipped."""
    starts: list[TrainingStart] = []
    before, ends = None, 0
    for written in text.splitlines():
        try:
            line = LedgerLine.model_validate_json(written)
        except ValidationError:
            continue
        if line.hurt is not None and before is None:
            before = len(starts)
        if line.begin is not None:
            starts.append(TrainingStart(line.begin, [line]))
        elif starts:
            starts[-1].lines.append(line)
        ends += line.end is not None
    return WitnessLedger(starts, before, ends)


def model_after(steps: int) -> str:
    """Return the model of the small job after `steps` steps: a digest over all samples in order."""
    model = ""
    for sample in range(steps * SAMPLES):
        model = hashlib.sha256(f"{model}{sample}".encode()).hexdigest()
    return model


def judge(planned: Planned, seen: RunObservation) -> DrillJudgement:
    """Judge a run.

    It must end as expected, train on every sample, repeat at most the allowed checkpoint intervals, leave
    nothing on the host, and have a complete local copy.
    """
    fault, ledger = planned.fault, seen.ledger
    problems = [*_wrong_end(fault, seen), *_wrong_samples(ledger)]
    if ledger.starts_before is None:
        problems.append("the fault did not happen")
    again = last = 0
    for start in ledger.starts:
        if start.begin > last:
            problems.append(
                f"a start continued from step {start.begin}, but only {last} steps had been trained"
            )
        again += max(0, last - start.begin)
        last = max(last, start.last)
    if again > fault.intervals * INTERVAL:
        problems.append(
            f"{again} steps were trained again; at most {fault.intervals * INTERVAL} were expected"
        )
    problems += [f"the local copy differs from the host: {path}" for path in sorted(seen.differing)]
    problems += [f"left on the host: {thing}" for thing in seen.left]
    return DrillJudgement(tuple(problems), again, _silence(ledger))


def _wrong_end(fault: Fault, seen: RunObservation) -> list[str]:
    ended = seen.state if seen.reason is None else f"{seen.state}: {seen.reason}"
    if fault.reason is not None:
        stated = f"failed: {fault.reason}"
        problems = [] if ended == stated else [f"it ended as {ended}; expected: {stated}"]
        return [*problems, *(["its training reached the end"] if seen.ledger.ends else [])]
    problems = [] if seen.state == "succeeded" else [f"it ended as {ended}; expected: succeeded"]
    if seen.ledger.ends != 1:
        problems.append(f"its training reached the end {seen.ledger.ends} times")
    if seen.model.strip() != model_after(STEPS):
        problems.append("its model differs from that of an undisturbed training")
    return problems


def _wrong_samples(ledger: WitnessLedger) -> list[str]:
    for start in ledger.starts:
        for number, line in enumerate(start.steps, start.begin + 1):
            if line.step != number:
                return [f"step {line.step} followed step {number - 1}"]
            if line.samples != tuple(range((number - 1) * SAMPLES, number * SAMPLES)):
                return [f"step {number} was trained on other samples than its own"]
    return []


def _silence(ledger: WitnessLedger) -> float | None:
    """Return the seconds between the last line before the fault's restart and the first step after it.

    Return None without a restart.
    """
    count = ledger.starts_before
    if not count or len(ledger.starts) <= count or not ledger.starts[count].steps:
        return None
    before = [line.time for line in ledger.starts[count - 1].lines if line.time is not None and not line.hurt]
    after = ledger.starts[count].steps[0].time
    return after - before[-1] if before and after is not None else None


def minutes_of(planned: Collection[Planned]) -> float:
    """Return the approximate length of a drill in minutes."""
    return sum(one.fault.seconds for one in planned) / 60
