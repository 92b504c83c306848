"""explain: the precisions for a card and a job, with reasons; or the precision that a run used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import CardOption, HostOption, JobOption, JsonFlag, PrecisionOption, SetOption
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.planning.precision.ladder import Excluded, LadderInputs
    from launcher.values.precision import Precision


def explain(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            show_default=False,
            help="A run's id, the start of it or of its last part; or `last`.",
        ),
    ] = None,
    host: HostOption = None,
    profile: CardOption = None,
    job: JobOption = None,
    precision: PrecisionOption = "auto",
    settings: SetOption = None,
    probe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Use this output of `launch probe --json` instead of asking the host."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the precisions for a card and a job, with reasons; or the precision that a run used.

    The ladder comes first, in the order of trial, then the excluded precisions.

    For a run, the precision that ran is shown beside the one that suits the card, with advice if they differ.

    Examples:
        launch explain --profile titan_rtx --job sft
        launch explain --host lab --set method=full
        launch explain last
    """
    if run is not None:
        if profile or job or settings or probe or precision != "auto":
            raise UsageError(
                "a run has its own card and job\n  a run        launch explain RUN\n"
                "  a card       launch explain --profile PROFILE"
            )
        _of_run(run, host, as_json=as_json)
        return
    from launcher.cli.output.wrapping import say_wrapped
    from launcher.cli.text.plan_text import CHECKPOINTING, sharding_words, show_findings
    from launcher.copy.request import Request
    from launcher.planning.precision.memory import usable_words
    from launcher.runs.host_probes import saved_probe
    from launcher.runs.launch.dry_run import explain as explain_request
    from launcher.runs.launch.hook_note import hook_note

    request = Request(host=host, profile=profile, job=job, precision=precision, settings=settings or ())
    case, (rungs, excluded), findings, task, takes, resources = explain_request(
        request, saved_probe(probe) if probe else None
    )
    if as_json:
        from launcher.cli.json_output.ladder_shapes import LadderShown
        from launcher.cli.output.answer import answer

        answer(
            LadderShown(
                profile=case.profile.name,
                method=case.method,
                model=case.model,
                ladder=rungs,
                excluded=excluded,
                memory=[parts for rung in rungs if (parts := _memory(case, rung))],
                checkpointing=case.workload.is_checkpointed,
                sharding=case.workload.is_sharded,
                findings=findings,
                inject=task.inject,
                takes=takes,
                slurm=resources.submission,
            )
        )
        return
    _show_ladder(rungs, excluded)
    if "precision" not in takes:
        say_wrapped("the job's script decides its own precision: it takes none of these")
    if case.workload.is_checkpointed:
        say_wrapped(CHECKPOINTING)
    if case.workload.is_sharded:
        say_wrapped(sharding_words(case.workload.ranks))
    if case.model is not None:
        _show_memory([_memory(case, rung) for rung in rungs])
    if case.model is not None and case.profile.memory_bytes is not None:
        say_wrapped(usable_words(case.profile))
    if case.model is None:
        say_wrapped(
            "the model's configuration is not known here: a model trained in bf16, or a very large one, would change the order"
        )
    if note := hook_note(task):
        say_wrapped(note)
    if resources.title:
        say_wrapped(resources.title)
    show_findings(findings)


def _memory(case: LadderInputs, rung: Precision) -> dict[str, int]:
    """Return the parts of a step's memory and the reserve for CUDA, in bytes; empty if the model is unknown."""
    from launcher.planning.precision.memory import reserve_bytes

    needed = case.estimate(rung)
    parts = {} if needed is None else {**needed._asdict(), "reserve": reserve_bytes(case.profile)}
    return {name: round(part) for name, part in parts.items()}


def _show_memory(rungs: Sequence[dict[str, int]]) -> None:
    """Print the memory of a step with a micro-batch of 1 in each rung."""
    from launcher.cli.output.columns import Column, print_columns
    from launcher.planning.precision.memory import GB

    titles = ("rung", *rungs[0], "GB in all")
    rows = [
        (str(number), *(f"{part / GB:.2f}" for part in (*parts.values(), sum(parts.values()))))
        for number, parts in enumerate(rungs, start=1)
    ]
    print_columns(tuple(map(Column, titles)), rows)


def _show_ladder(rungs: Sequence[Precision], excluded: Sequence[Excluded]) -> None:
    """Print the precisions in the order of trial, then the excluded ones."""
    from launcher.cli.output.columns import Column, print_columns
    from launcher.values.precision import SHORT

    rows: list[tuple[str, ...]] = []
    for number, rung in enumerate(rungs, start=1):
        name = rung.products_title
        scaler = "yes" if rung.scaler else "-"
        rows.append((str(number), name, rung.base_title, SHORT[rung.trainable_dtype], scaler, rung.why))
    for exclusion in excluded:
        base = exclusion.base_title or "-"
        label = f"only with --precision {exclusion.mode}" if exclusion.on_request else "excluded"
        rows.append(("-", exclusion.mode, base, "-", "-", f"{label}: {exclusion.why}"))
    titles = ("rung", "precision", "base", "trained", "scaler")
    print_columns((*map(Column, titles), Column("why here", 40, wraps=True)), rows)


def _of_run(word: str, host: str | None, *, as_json: bool) -> None:
    """Show the precision that a run used."""
    from launcher.cli.follow.fetch import fetch
    from launcher.cli.text.precision_text import report_json, show_report
    from launcher.runs.follow.precision_report import precision_report

    report = precision_report(fetch(word, host))
    if as_json:
        from launcher.cli.output.answer import answer

        answer(report_json(report))
    else:
        show_report(report)
