"""The lines for a run's end: its outcome, the files here, and the next command to type."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.cli.follow.progress import Progress, count
from launcher.cli.output.figures import clock_text, size_text, value_text
from launcher.runs.follow import evidence
from launcher.runs.follow.own_checkpoint import newest_own
from launcher.runs.follow.view import Result
from launcher.values.record import RunState
from launcher.values.states import Reason

LARGEST = 3
"""Number of downloaded files that are named."""
LINE_CELLS = 200
"""Maximum length of a printed line in the report."""
_RECOVER = {
    "interrupted": "continues from the last checkpoint",
    "card": "continues when a suitable card is free",
    "secret": "sends the secrets that are set here",
    "image": "tries the image or the environment as it is by then",
    "client": "makes a new container",
    "job": "submits a new job",
    "rent": "continues on another host from the local checkpoint",
}
"""The effect of `launch recover`, by the reason for which a run waits."""
_IF_IT_CAN = "continues, if its script can"


class StyledLine(NamedTuple):
    """A line and its style."""

    text: str
    style: str = ""


def ending(
    run: str, state: RunState, result: Result, progress: Progress, not_shown: list[str]
) -> Iterator[StyledLine]:
    """Yield the lines for the end of a run. `not_shown` are its last printed lines, if the view has hidden them."""
    short = run.rpartition("-")[2]
    took = clock_text(result.seconds) if result.seconds is not None else ""
    rehearsed = ["rehearsed on a CPU"] if result.is_rehearsed else []
    has_succeeded = state.state == "succeeded"
    doubt = evidence.doubt(state.evidence)
    if has_succeeded:
        outcome = ", ".join([*_outcome(progress, result), *rehearsed])
        yield StyledLine(f"  {'!' if doubt else '✓'} succeeded {took}   {outcome}".rstrip(), "bold")
        if doubt:
            yield StyledLine(f"    doubt  {doubt}")
        if result.unsound is not None:
            yield StyledLine(f"    ! precision: {result.unsound}")
    else:
        gone = (
            "no session runs it"
            if evidence.of_service(state.evidence)
            else "its agent or its container is gone"
        )
        is_cut_short = evidence.of_rent(state.evidence)
        reason = "its machine's time was up" if is_cut_short else state.reason or gone
        reached = [f"step {progress.where()}"] if progress.step is not None else []
        where = ", ".join([reason, *reached, *rehearsed])
        became = "stopped" if is_cut_short else state.state
        yield StyledLine(f"  ✗ {became} {took}   {where}", "bold")
        yield from (
            StyledLine(f"    {label:<6} {text}") for label, text in evidence.diagnosis(state.evidence).items()
        )
        words = evidence.words(state.evidence)
        if words and not is_cut_short:
            yield StyledLine(f"    {', '.join(words)}")
        if state.state == "failed":
            yield from (StyledLine(f"    | {line[:LINE_CELLS]}", "dim") for line in not_shown)
    if lingered := evidence.lingered(state.evidence):
        yield StyledLine(f"    note   {lingered[:LINE_CELLS]}")
    if used := evidence.used(state.evidence):
        yield StyledLine(f"    used   {used}")
    if problem := evidence.not_sent(state.evidence):
        yield StyledLine(f"    ! on_end: {problem[:LINE_CELLS]}")
    yield from _at_home(run, result)
    yield from _next(short, state, result, progress, has_doubt=bool(doubt))


def _at_home(run: str, result: Result) -> Iterator[StyledLine]:
    """Yield the path of the run's folder, then its weights, curve, downloaded files, rental cost and metrics."""
    yield StyledLine(f"  run      {run if result.folder is None else shown_path(result.folder)}")
    weights = result.adapter.name if result.adapter is not None else ""  # the label: `adapter` or `model`
    best = result.metrics.get("best_step")
    which = "" if best is None else f"   of step {value_text(best)}, the best"
    for label, path, note in ((weights, result.adapter, which), ("curve", result.picture, "")):
        if path is not None:
            yield StyledLine(f"  {label:<8} {shown_path(path)}{note}")
    yield from map(StyledLine, home_lines(run, result.home))
    yield from map(StyledLine, _offline_records(result.home))
    if result.rent is not None:
        yield StyledLine(f"  rent     {result.rent.words}{'; a process here ends it' * result.rent.is_held}")
    if result.metrics:
        board = "      tensorboard --logdir runs" if shutil.which("tensorboard") else ""
        yield StyledLine(f"  metrics  launch metrics {run.rpartition('-')[2]}{board}")


def _next(
    short: str, state: RunState, result: Result, progress: Progress, *, has_doubt: bool
) -> Iterator[StyledLine]:
    """Yield the commands to type next."""
    name = state.state
    if name == "succeeded":
        if result.unsound is not None:
            yield StyledLine(
                f"  explain  launch explain {short}     the card's best precision, and how to get it"
            )
        yield StyledLine(f"  output   launch logs {short}")
        if has_doubt:
            yield StyledLine(f"  next     launch diagnose {short}")
        return
    if name == "failed" and result.adapted is not None:
        yield StyledLine(f"  adapt    {result.adapted}")
    if name == "failed" and result.checked is not None:
        yield StyledLine(f"  check    {result.checked}")
    if evidence.of_rent(state.evidence):
        host = result.rents_at or "HOST"
        if count(state.checkpoint) is None:
            yield from _from_start(short, host, result)
        else:
            yield StyledLine(f"  next     launch recover {short} --host {host}     {_RECOVER['rent']}")
    elif name in ("interrupted", "waiting"):
        wanted = str(state.reason) if name == "waiting" else name
        if wanted == "client" and result.is_job:
            wanted = "job"
        can_resume = name == "waiting" or "resume" in (state.consumed or ())
        what = _RECOVER.get(wanted, _IF_IT_CAN) if can_resume else _IF_IT_CAN
        yield StyledLine(f"  next     launch recover {short}     {what}")
    elif state.reason == Reason.NOT_RESTARTABLE:
        why = "" if evidence.own_checkpoint(state.evidence) else ": its script cannot continue"
        yield StyledLine(f"  next     launch rerun {short}     from its start{why}")
        yield StyledLine(f"  output   launch logs {short}")
    else:
        yield StyledLine(f"  next     launch logs {short}")
    if name == "failed" and not evidence.diagnosis(state.evidence):
        yield StyledLine(f"           launch diagnose {short}     reads its log for the cause")
    if result.new_run is not None:
        yield StyledLine(f"  new run  launch attach {result.new_run.rpartition('-')[2]}")
    elif (
        name in ("failed", "stopped")
        and state.reason not in (Reason.CODE_DAMAGED, Reason.NOT_RESTARTABLE)
        and (saved := count(state.checkpoint)) is not None
    ):
        there = f" --host {result.rents_at}" if result.rents_at is not None else ""
        if state.reason == Reason.USER_CODE_ERROR:
            yield StyledLine(
                f"  rerun    launch rerun {short}{there}     with your corrected code, from its start"
            )
        elif progress.steps is not None and saved >= progress.steps:
            if name == "failed" and result.rents_at is None:
                yield StyledLine(
                    f"  resume   launch resume {short}     does what follows its training: its last step is done"
                )
            else:
                yield StyledLine(
                    f"  rerun    launch rerun {short}{there}     from its start: its last step is done"
                )
        else:
            yield StyledLine(f"  resume   launch resume {short}{there}     from step {saved}")
    elif name in ("failed", "stopped") and state.reason != Reason.USER_CODE_ERROR and result.rents_at is None:
        yield from _from_own(short, state, progress)


def _from_own(short: str, state: RunState, progress: Progress) -> Iterator[StyledLine]:
    """Yield the command that continues beside the files that the script wrote, if it can do so."""
    own = evidence.own_checkpoint(state.evidence)
    is_upload = state.reason == Reason.UPLOAD_FAILED
    has_trained = is_upload if progress.steps is None else (progress.step or 0) >= progress.steps
    if own is None:
        return
    if own.is_trainers:
        rest = ", to do what follows its training" if has_trained else ""
        yield StyledLine(f"  resume   launch resume {short}     from its own {own.path}{rest}")
        if is_upload and has_trained:
            yield StyledLine(
                f"           launch resume {short} -- COMMAND     only uploads, beside the files that it wrote"
            )
        return
    words = f"with your script's option that loads {own.path}"
    if has_trained:
        words = f"does what follows its training, beside {own.path} and the other files that it wrote"
    yield StyledLine(f"  resume   launch resume {short} -- COMMAND     {words}")


def _from_start(short: str, host: str, result: Result) -> Iterator[StyledLine]:
    """Yield the command that starts from step 0, and the path of the newest checkpoint that the script saved itself."""
    saved = newest_own(result.home)
    why = "none of its checkpoints is launcher's" if saved is not None else "it has saved no checkpoint"
    yield StyledLine(f"  next     launch rerun {short} --host {host}     from its start: {why}")
    if saved is not None:
        yield StyledLine(f"  its own  {shown_path(saved)}   the newest")


def home_lines(run: str, files: Mapping[Path, int]) -> Iterator[str]:
    """Yield a line for each of the largest downloaded files, with its size, then a line that counts the others."""
    largest = sorted(files, key=lambda path: (-files[path], path))[:LARGEST]
    for number, path in enumerate(largest):
        yield f"  {'files' if number == 0 else '':<8} {shown_path(path)} ({size_text(files[path])})"
    left = len(files) - LARGEST
    if left > 0:
        yield f"  {'':<8} and {left} more   launch ls {run.rpartition('-')[2]}"


def _offline_records(files: Mapping[Path, int]) -> Iterator[str]:
    """Yield the command that uploads the records that wandb wrote offline, for the first downloaded folder of them."""
    folders = {parent for path in files for parent in path.parents if parent.name.startswith("offline-run-")}
    if folders:
        more = f"   and {len(folders) - 1} more" if len(folders) > 1 else ""
        yield f"  {'wandb':<8} wandb sync {shlex.quote(shown_path(min(folders)))}{more}"


def shown_path(path: Path) -> str:
    """Return a path relative to the working directory if it lies below it, else the complete path."""
    here = Path(os.path.realpath("."))
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _outcome(progress: Progress, result: Result) -> list[str]:
    words = [f"{progress.step} step{'s' * (progress.step != 1)}"] if progress.step is not None else []
    if "loss" in result.metrics and result.first_loss is not None:
        words.append(f"loss {value_text(result.first_loss)} → {value_text(result.metrics['loss'])}")
    words += [
        f"{name.replace('_', ' ')} {result.metrics[name]:.2f}"
        for name in ("accuracy", "answer_rate")
        if name in result.metrics
    ]
    if "perplexity_best" in result.metrics:  # of the student whose weights are downloaded
        best = f"best perplexity {value_text(result.metrics['perplexity_best'])}"
        step = result.metrics.get("best_step")
        words.append(best if step is None else f"{best} at step {value_text(step)}")
    if "perplexity_teacher" in result.metrics:
        words.append(f"teacher {value_text(result.metrics['perplexity_teacher'])}")
    return words
