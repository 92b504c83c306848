"""The result of a verification, read from the events of its trials."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from launcher.copy.local_copy import LocalCopy
from launcher.copy.request import Request, recall
from launcher.errors import UsageError
from launcher.planning.precision.ladder import clearly_fastest
from launcher.planning.precision.precision_comparison import compare
from launcher.planning.precision.precision_history import MIN_COSINE, PRECISION_FAILURES
from launcher.values.job import trains_adapter
from launcher.values.plan import Plan
from launcher.values.precision import Precision
from launcher.values.public_result import public
from launcher.values.record import RunState
from launcher.values.reported.trial_record import GOOD, CardMeasured, JobMeasured, TrialEnded, rate_of
from launcher.values.reported.used_precision import PrecisionSeen

OUT_OF_MEMORY = "cuda-oom"
LINES_SHOWN = 5
"""The number of lines kept of a failed trial's log, which is removed with the run."""
_TAIL_BYTES = 1 << 14
_ADAPTS = "adapt=true"


class RungReport(NamedTuple):
    """A rung of the ladder, counted from 1, and the result of its trial.

    `measured` is None unless the trial was good. `differs` names the observed dtypes, autocast and scaler
    that differ from the plan; None if nothing was observed. `printed` are the last lines of a failed trial.
    """

    rung: int
    precision: Precision
    result: str
    why: str | None
    line: str | None
    micro_batch: int
    measured: JobMeasured | None
    differs: tuple[str, ...] | None
    printed: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Whether a launch may use the rung.

        True if it trains, its gradient is close to that of fp32, and its dtypes are those of the plan.
        """
        return self.is_relied_on and not self.differs

    @property
    def is_relied_on(self) -> bool:
        """Whether later plans may choose the rung for its speed: it trains, and its gradient is close to that of fp32.

        Its dtypes are not checked, because later plans have no record of them.
        """
        cosine = self.measured.cosine if self.measured is not None else None
        is_near = cosine is None or cosine >= MIN_COSINE
        return self.result == GOOD and is_near

    @property
    def is_put_behind(self) -> bool:
        """Whether later plans try the rung only after one that works.

        Failures that the precision did not cause are not remembered.
        """
        return self.result in PRECISION_FAILURES or (self.result == GOOD and not self.is_relied_on)


@public("LargestMicroBatch")
class LargestMicroBatch(NamedTuple):
    """The largest micro-batch that worked in a rung, and the smallest that ran out of memory."""

    rung: int
    fits: int
    too_large: int | None


class VerificationReport(NamedTuple):
    """The result of a verification. A missing part is None, or absent from `rungs`.

    `launch` is the command line that launches the same job; None if the command line of the verification is
    not in the local copy.
    """

    run: str
    plan: Plan
    state: RunState
    card: CardMeasured | None
    card_failure: TrialEnded | None
    rungs: tuple[RungReport, ...]
    batch: LargestMicroBatch | None
    launch: str | None = None

    @property
    def trains_nowhere(self) -> bool:
        """Whether all rungs were tried and the job trained in none."""
        return len(self.rungs) == len(self.plan.ladder) and all(rung.result != GOOD for rung in self.rungs)

    @property
    def works(self) -> bool:
        """Whether the first rung, with which a launch begins, may be used."""
        return any(rung.rung == 1 and rung.works for rung in self.rungs)

    @property
    def fastest(self) -> RungReport | None:
        """The rung that was clearly faster than the first one, so that later plans try it first.

        None in a rehearsal: the speed of a CPU says nothing about the card, and later plans ignore it.
        """
        if self.plan.rehearsed:
            return None
        good = {rung.rung: rung for rung in self.rungs if rung.is_relied_on}
        numbers = range(1, len(self.plan.ladder) + 1)
        place = clearly_fastest([rate_of(good[one].measured) if one in good else 0.0 for one in numbers])
        return good[place + 1] if place else None


def verification_report(local_copy: LocalCopy, state: RunState) -> VerificationReport:
    """Return the results of a run's trials. Raises BadFileError if this version does not understand its plan."""
    plan = local_copy.whole_plan()
    trials: dict[tuple[str, int, int], tuple[TrialEnded, PrecisionSeen | None]] = {}
    folders: dict[tuple[str, int], str] = {}
    for folder in local_copy.files.numbered():
        for trial, seen in _ended(local_copy, folder):
            trials[trial.trial, trial.rung, trial.micro_batch] = (trial, seen)
            folders[trial.trial, trial.rung] = folder
    card = next((trial for trial, _ in trials.values() if trial.trial == "card"), None)
    measured = card.measured if card is not None and card.result == GOOD else None
    rungs = []
    for number, precision in enumerate(plan.ladder, start=1):
        of_rung = [pair for pair in trials.values() if (pair[0].trial, pair[0].rung) == ("rung", number - 1)]
        if of_rung:  # the last trial: those before it ran out of memory
            rung = _of_rung(plan, number, precision, *of_rung[-1])
            printed = () if rung.result == GOOD else _last_lines(local_copy, folders["rung", number - 1])
            rungs.append(rung._replace(printed=printed))
    return VerificationReport(
        local_copy.run,
        plan,
        state,
        CardMeasured.lenient(measured) if measured is not None else None,
        card if card is not None and card.result != GOOD else None,
        tuple(rungs),
        _batch([trial for trial, _ in trials.values()]),
        _launch_command(local_copy),
    )


def _last_lines(local_copy: LocalCopy, folder: str) -> tuple[str, ...]:
    """Return the last lines of a log that are not blank."""
    try:
        with local_copy.files.open(f"{folder}/log.txt") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line for line in lines if line.strip())[-LINES_SHOWN:]


def _launch_command(local_copy: LocalCopy) -> str | None:
    """Return the command line that launches the job that a run verified."""
    with contextlib.suppress(UsageError):
        return launch_command(recall(local_copy))
    return None


def launch_command(request: Request) -> str:
    """Return the command line that launches the verified job."""
    options: dict[str, Sequence[str | None]] = {
        "--host": [request.host],
        "--profile": [request.profile],
        "--job": [request.job],
        "--set": [setting for setting in request.settings if setting != _ADAPTS],
        "--env-file": request.env_files,
        "--secret": request.secrets,
        "--gpus": [request.gpus],
    }
    words = ["launch", *(["--rehearse"] if request.rehearses else [])]
    words += ["--adapt"] if _ADAPTS in request.settings else []
    for option, values in options.items():
        words += [word for value in values if value is not None for word in (option, value)]
    return shlex.join([*words, *(["--", *request.words] if request.words else [])])


def _ended(local_copy: LocalCopy, folder: str) -> Iterator[tuple[TrialEnded, PrecisionSeen | None]]:
    """Yield the trial that an attempt ended with, and the precision that the start-up hook observed in it."""
    seen = None
    for event in local_copy.record.marked_events(folder, b'"precision_seen"', b'"trial"'):
        if event.kind == "evidence" and isinstance(event.values.get("precision_seen"), dict):
            seen = PrecisionSeen.lenient(event.values["precision_seen"])
        if event.kind == "trial":
            try:
                yield TrialEnded.lenient(event.values), seen
            except ValidationError:
                continue


def _of_rung(
    plan: Plan, number: int, precision: Precision, trial: TrialEnded, seen: PrecisionSeen | None
) -> RungReport:
    is_good = trial.result == GOOD and trial.measured is not None
    measured = JobMeasured.lenient(trial.measured) if is_good else None
    differs = None
    if seen is not None:
        rows = compare(
            seen, precision, is_rehearsed=plan.rehearsed, trains_all=not trains_adapter(plan.method)
        )
        differs = tuple(f"{row.name} {row.ran} instead of {row.wanted}" for row in rows if row.differs)
    return RungReport(
        number, precision, trial.result, trial.why, trial.line, trial.micro_batch, measured, differs
    )


def _batch(trials: list[TrialEnded]) -> LargestMicroBatch | None:
    """Return the largest micro-batch of the rung that was tried with several micro-batches; None without such a rung."""
    tried = next((trial for trial in trials if trial.trial == "batch"), None)
    if tried is None:
        return None
    of_rung = [trial for trial in trials if trial.trial != "card" and trial.rung == tried.rung]
    fits = max((trial.micro_batch for trial in of_rung if trial.result == GOOD), default=0)
    too_large = [trial.micro_batch for trial in of_rung if trial.result == OUT_OF_MEMORY]
    return LargestMicroBatch(tried.rung + 1, fits, min(too_large, default=None))
