"""ps: the runs and their states."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.figures import age_text
from launcher.cli.options import AcceptFlag, HostOption, JsonFlag
from launcher.cli.say import say

if TYPE_CHECKING:
    from launcher.runs.control import Row
    from launcher.values.record import Summary


def ps(
    host: HostOption = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only runs in this state.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="Only the newest N runs.")
    ] = None,
    _accept: AcceptFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List the runs of this client, or all runs of one host.

    Examples:  launch ps     launch ps --host lab     launch ps --host lab --last 20 --state failed
    """
    from launcher.runs.control import listing

    rows = listing(host, tuple(state or ()), last)
    if as_json:
        runs = [{**row.summary.model_dump(), "host": row.host, "problem": row.problem} for row in rows]
        print(json.dumps({"version": 1, "runs": runs}))
        return
    if not rows:
        say(*(["no such runs"] if state else ["no runs yet", "  next   launch"]))
        return
    _show(rows)


def _show(rows: list[Row]) -> None:
    from launcher.cli.columns import print_columns

    print_columns(
        ("RUN", "JOB", "HOST", "CARD", "STATE", "STEP", "LOSS", "AGE", ""),
        [_cells(row) for row in rows],
        whole=(0, 5, 6, 7),
    )


def _cells(row: Row) -> tuple[str, ...]:
    run = row.summary
    return (
        run.short,
        run.job or "-",
        row.host,
        f"{run.card or '-'}{', rehearsed' if run.rehearsed else ''}",
        _state(row),
        _step(run),
        _loss(run.loss),
        _age(run.time),
        f"last seen {run.state}; {row.problem}" if row.problem else _why(row),
    )


def _why(row: Row) -> str:
    """Return why a run failed or is in doubt, else the remedy behind its current attempt."""
    from launcher.runs.evidence import diagnosis, doubt, words

    run = row.summary
    evidence, remedy = run.evidence, run.remedy
    if run.trouble is not None:
        return run.trouble.on(row.host).words
    if why := diagnosis(evidence).get("why") or doubt(evidence):
        return why
    if remedy and not evidence:
        return f"after {remedy.get('class')} in attempt {remedy.get('attempt')}: {remedy.get('text')}"
    return ", ".join(words(evidence))


def _state(row: Row) -> str:
    if row.problem:
        return "unreachable"
    trouble = row.summary.trouble
    if trouble is not None and trouble.kind == "paused":
        return trouble.kind
    state, attempt, reason = row.summary.state, row.summary.attempt or 1, row.summary.reason
    words = state if attempt == 1 else f"{state}, attempt {attempt}"
    return f"{words}: {reason}" if reason and state in ("failed", "waiting", "resuming") else words


def _step(run: Summary) -> str:
    return "-" if run.step is None else f"{run.step}/{run.steps}" if run.steps else str(run.step)


def _loss(loss: object) -> str:
    return f"{loss:.4g}" if isinstance(loss, int | float) else str(loss or "-")


def _age(began: float | None) -> str:
    if began is None:
        return "-"
    return age_text(time.time() - began)
