"""ps: list runs and their states."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.options import HostOption, JsonFlag, seconds
from launcher.cli.output.figures import age_text, duration_text
from launcher.cli.output.say import complain, say
from launcher.values.states import Reason, State

if TYPE_CHECKING:
    from launcher.cli.output.columns import Column
    from launcher.runs.run_listing import ListedRun
    from launcher.values.record import Summary


def ps(
    host: HostOption = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only runs in this state.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="Only the newest N runs.")
    ] = 50,
    here: Annotated[bool, typer.Option("--here", help="Only runs with a copy in this folder.")] = False,
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="How long to wait for hosts: 3s, 1m.")
    ] = "3s",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Repeat every five seconds, until Ctrl-C.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List your runs, or all runs of one host, the newest first.

    Only hosts of live runs are asked. A run whose copy is in another folder is shown with that folder. A narrow terminal
    cuts long texts and leaves out columns; a pipe gets everything. With --watch, a pipe gets the list again whenever it
    changes.

    Examples:
        launch ps
        launch ps --here
        launch ps --watch
        launch ps --host lab --limit 20 --state failed
    """
    from launcher.runs.locating import foreign_here
    from launcher.runs.run_listing import listing

    wait_s = seconds(wait)

    def look(most: int = limit) -> list[ListedRun]:
        return listing(host, tuple(state or ()), most, here=here, wait_s=wait_s)

    foreign = foreign_here() if host is None else []

    if not watch:
        from launcher.cli.output.wait_notice import waiting_for

        with waiting_for(host or "the hosts of live runs"):
            rows = look(limit + 1)  # one extra row shows whether more runs exist
        _show(rows[:limit], host, foreign, is_chosen=bool(state), here=here, as_json=as_json)
        if len(rows) > limit and not as_json:
            shown = "only the newest is" if limit == 1 else f"the newest {limit} are"
            complain(f"{shown} shown   more   launch ps --limit {10 * limit}")
        return
    from launcher.cli.output.watch_loop import watch as watch_rows

    watch_rows(
        look,
        lambda rows, width: _table(rows, foreign, is_chosen=bool(state), here=here, width=width),
        (lambda rows: _json(rows, foreign)) if as_json else None,
    )


def _show(
    rows: list[ListedRun], host: str | None, foreign: list[str], *, is_chosen: bool, here: bool, as_json: bool
) -> None:
    from launcher.cli.output.columns import print_columns

    if as_json:
        print(_json(rows, foreign))
    elif not rows:
        say(
            *(
                _nothing(foreign, is_chosen=is_chosen, here=here)
                if host is None or is_chosen
                else _nothing_at(host)
            )
        )
    else:
        print_columns(*_cells_of(rows))
    if not as_json:
        if foreign and rows:
            complain(_foreign(foreign))
        _tell_batches()


def _tell_batches() -> None:
    """Print the unfinished batches of this folder that no process runs."""
    from launcher.copy.runs_folder import runs_folder

    if not (runs_folder() / "batches").is_dir():
        return
    from launcher.batch.batch_queue import unworked_batches

    for name, queued in unworked_batches(complain).items():
        waits = f", and {queued} {'item is' if queued == 1 else 'items are'} queued" if queued else ""
        complain(f"batch {name}: no process runs it{waits}   launch batch resume {name}")


def _json(rows: list[ListedRun], foreign: list[str]) -> str:
    import json

    from launcher.cli.json_output.run_shapes import RunRow, RunsShown
    from launcher.cli.output.answer import plain

    runs = [
        RunRow(
            **dict(row.summary),
            host=row.host,
            problem=row.problem,
            reached=row.reached,
            goes_on=row.move,
            rent_cents=row.rent.cents if row.rent is not None else None,
            batch=row.batch,
            folder=row.folder,
        )
        for row in rows
    ]
    return json.dumps(plain(RunsShown(runs=runs, foreign=foreign)))


def _table(
    rows: list[ListedRun], foreign: list[str], *, is_chosen: bool, here: bool, width: int | None
) -> list[str]:
    from launcher.cli.output.columns import lay_out

    return (
        lay_out(*_cells_of(rows), width).lines if rows else _nothing(foreign, is_chosen=is_chosen, here=here)
    )


def _nothing(foreign: list[str], *, is_chosen: bool, here: bool) -> list[str]:
    if is_chosen:
        return ["no such runs"]
    if here:
        words = "no runs of yours in this folder; those of all folders   launch ps"
        return [words, *([_foreign(foreign)] if foreign else [])]
    return ["no runs of yours yet", *([_foreign(foreign)] if foreign else ["  next   launch"])]


def _foreign(runs: list[str]) -> str:
    """Return the note on foreign runs: local copies of runs that this user has neither launched nor attached."""
    many, are = (
        (f"{len(runs)} foreign runs are", "they are") if len(runs) > 1 else ("1 foreign run is", "it is")
    )
    return f"{many} here too; if {are} yours   launch attach --host HOST --all"


def _nothing_at(name: str) -> list[str]:
    """Return the lines for a host without runs of this client. It may have runs of other computers."""
    from launcher.backends.registry import backend_of
    from launcher.config.lookup import Lookup

    host = Lookup().host(name)
    return backend_of(host).upkeep.others(host) or _nothing([], is_chosen=False, here=False)


def _cells_of(rows: list[ListedRun]) -> tuple[tuple[Column, ...], list[tuple[str, ...]]]:
    """Return the columns and cells of rows. The column BATCH appears only if a row has a batch."""
    from launcher.cli.output.columns import Column

    columns, cells = _columns(), [_cells(row) for row in rows]
    if all(row.batch is None for row in rows):
        return columns, cells
    batch = Column("BATCH", 8, drop=3)
    return (*columns[:2], batch, *columns[2:]), [
        (*found[:2], row.batch or "-", *found[2:]) for row, found in zip(rows, cells, strict=True)
    ]


def _columns() -> tuple[Column, ...]:
    from launcher.cli.output.columns import Column

    return (
        Column("RUN"),
        Column("JOB", 8, drop=3),
        Column("HOST", 6, drop=4),
        Column("CARD", 9, drop=7),
        Column("STATE", 16),
        Column("STEP", drop=2),
        Column("LOSS", drop=6),
        Column("TIME", drop=1),
        Column("AGE", drop=8),
        Column("", 16, drop=5),
    )


def _cells(row: ListedRun) -> tuple[str, ...]:
    run = row.summary
    return (
        run.short,
        run.job or "-",
        row.host,
        f"{run.card or '-'}{', rehearsed' if run.rehearsed else ''}",
        _state(row),
        _step(run),
        _loss(run.loss),
        _time(run),
        _age(run.time),
        _remarks(row),
    )


def _remarks(row: ListedRun) -> str:
    """Return the text of a run's last column. It is empty for most runs, which therefore return early."""
    first = _unreached(row) if row.problem else _why(row)
    if not (row.move or row.beside or row.kept_age_s or row.rent or row.folder):
        return first
    where = f"in {_short(row.folder)}" if row.folder else ""
    return "; ".join(filter(None, (first, _continuation(row), row.beside, _kept(row), _rent(row), where)))


def _short(folder: str) -> str:
    """Return the folder of a local copy in short form: without `/runs`, and with `~` for the home folder."""
    home, place = os.path.expanduser("~"), os.path.dirname(folder) if folder.endswith("/runs") else folder
    return f"~{place[len(home) :]}" if place.startswith(f"{home}/") else place


def _unreached(row: ListedRun) -> str:
    """Return a run's last known state with its age, and why its host does not answer."""
    ago = f" {age_text(time.time() - row.reached)} ago" if row.reached is not None else ""
    return f"last seen {row.summary.state}{ago}; {row.problem}"


def _continuation(row: ListedRun) -> str:
    """Return the run that continues this one elsewhere, and whether the old host has been informed."""
    recorded_move = row.move
    if recorded_move is None:
        return ""
    what = f"continues as {recorded_move.short}"
    if row.next is not None:
        what = f"will continue as {recorded_move.short}, which has not begun   {row.next}"
    if not recorded_move.is_open:
        also = (
            f"; {row.host} has {recorded_move.also} on record as its continuation"
            if recorded_move.also
            else ""
        )
        return f"{what}{also}"
    heard = "not yet informed" if recorded_move.told is None else "informed, not yet ended"
    return f"abandoned, {what}; {heard}"


def _kept(row: ListedRun) -> str:
    """Return the age of the local checkpoint that a follower keeps."""
    if row.kept_age_s is None:
        return ""
    return (
        "no checkpoint here yet"
        if row.kept_age_s == math.inf
        else f"checkpoint here {age_text(row.kept_age_s)} old"
    )


def _rent(row: ListedRun) -> str:
    """Return the cost of a run's rented machine; empty if it is gone, as `problem` then has the cost."""
    if row.rent is None or row.is_gone:
        return ""
    return f"rent {row.rent.words}{f'; {row.rent.lost}' if row.rent.lost else ''}"


def _why(row: ListedRun) -> str:
    """Return why a run failed, waits or is in doubt, else the remedy that led to its current attempt."""
    run = row.summary
    evidence, remedy = run.evidence, run.remedy
    if run.trouble is not None:
        return run.trouble.on(row.host).words
    if not (evidence or remedy or run.state in ("waiting", "interrupted", "reserved")):
        return ""
    from launcher.runs.follow.evidence import (
        diagnosis,
        doubt,
        lingered,
        why_failed,
        why_waiting,
        with_stop,
        words,
    )

    there = f" --host {row.host}" if row.is_foreign else ""
    if run.state in ("waiting", "interrupted"):
        what = diagnosis(evidence).get("why") or ", ".join(words(evidence))
        return f"{what}   launch recover {run.short}{there}".strip()
    if (said := why_waiting(run)) is not None and (shown := with_stop(said, run.short)) != said:
        return f"{shown}{there}"
    if run.state == "reserved":
        return f"{', '.join(words(evidence))}   launch attach {run.short}{there}".strip()
    if why := why_failed(evidence) or doubt(evidence) or lingered(evidence):
        return why
    if remedy and not evidence and _is_current(remedy, run.attempt):
        return f"after {remedy.get('class')} in attempt {remedy.get('attempt')}: {remedy.get('text')}"
    return ", ".join(words(evidence))


def _is_current(remedy: dict[str, Any], attempt: int | None) -> bool:
    """Whether the current attempt is the one that the remedy started, or the failed one before it."""
    answered = remedy.get("attempt")
    return attempt is None or not isinstance(answered, int) or attempt <= answered + 1


def _state(row: ListedRun) -> str:
    if row.is_gone:
        return "gone"
    if row.problem:
        return "unreachable"
    trouble = row.summary.trouble
    if trouble is not None and trouble.kind == "paused":
        return trouble.kind
    state, attempt, reason = row.summary.state, row.summary.attempt or 1, row.summary.reason
    if reason == Reason.NEXT_TRIAL:
        return "verifying"
    if (
        state == State.RUNNING and reason
    ):  # the attempt's purpose: in `launch verify`, each attempt is a trial
        return reason
    words = state if attempt == 1 else f"{state}, attempt {attempt}"
    return f"{words}: {reason}" if reason and state in ("failed", "waiting", "resuming") else words


def _step(run: Summary) -> str:
    return "-" if run.step is None else f"{run.step}/{run.steps}" if run.steps else str(run.step)


def _loss(loss: object) -> str:
    return f"{loss:.4g}" if isinstance(loss, (int, float)) else str(loss or "-")


def _time(run: Summary) -> str:
    """Return a run's running time so far; `-` if it is unknown, or if no job of the run has begun."""
    if run.took_s is None or (run.state == State.RESERVED and not run.took_s):
        return "-"
    return duration_text(run.took_s)


def _age(began: float | None) -> str:
    if began is None:
        return "-"
    return age_text(time.time() - began)
