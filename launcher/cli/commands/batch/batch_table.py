"""A batch as a table: a row for each item, and the totals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.batch.batch_queue import (
    FILE,
    BatchQueue,
    Work,
    Worker,
    batches_folder,
    names,
    open_queue,
    worker_of,
)
from launcher.batch.batch_status import ItemRow, rows_of, state_of, totals, values_text
from launcher.batch.batch_usage import HOUR_S, Usage, Used, total
from launcher.batch.queued_item import DROPPED, REFUSED, Item, ItemState
from launcher.cli.output.columns import Column, Layout, lay_out, print_columns
from launcher.cli.output.figures import age_text, duration_text
from launcher.cli.output.say import complain, say
from launcher.errors import BadFileError, RunError

if TYPE_CHECKING:
    from launcher.batch.batch_stop import Stopped
    from launcher.cli.json_output.run_shapes import BatchItem

LF = "\n"
COLUMNS = (
    Column("ITEM", 10),
    Column("RUN", drop=4),
    Column("HOST", 6, drop=3),
    Column("STATE", 12),
    Column("STEP", drop=1),
    Column("LOSS", drop=2),
    Column("SEEN", drop=6),
    Column("SETTINGS", 12, drop=7),
    Column("COST", drop=4, is_figure=True),
    Column("WHY", 16, drop=5),
)


def _columns_of(rows: Sequence[ItemRow]) -> tuple[tuple[Column, ...], list[tuple[str, ...]]]:
    """Return the columns that have text in at least one row, and the rows' cells in them."""
    whole = [cells(row) for row in rows]
    kept = [number for number in range(len(COLUMNS)) if any(row[number] for row in whole)]
    return tuple(COLUMNS[number] for number in kept), [tuple(row[number] for number in kept) for row in whole]


def spent(queue: BatchQueue, used: Mapping[int, Used]) -> str:
    """Return the total time of a batch's runs, its GPU hours, and its cost beside the maximum. Unknown figures are left out."""
    whole, words = total(used), ""
    if whole.run_s:
        words = f"; {duration_text(whole.run_s)} of runs"
    if whole.gpu_s:
        words += f", {whole.gpu_s / HOUR_S:.2f} GPU hours"
    most = queue.rules.max_cost
    return words if most is None else f"{words}; {_dollars(whole.cents or 0)} of ${most:.2f}"


def _dollars(cents: int) -> str:
    from launcher.rental.renting import dollars  # few batches rent

    return dollars(cents)


def cells(row: ItemRow) -> tuple[str, ...]:
    """Return a row's cells for all columns."""
    step = "-" if row.step is None else f"{row.step}/{row.steps}" if row.steps else str(row.step)
    loss = "-" if row.loss is None else f"{row.loss:.4g}" if isinstance(row.loss, float) else str(row.loss)
    return (
        row.name,
        row.short,
        row.host or "-",
        row.state if row.used.tries < 2 else f"{row.state}, try {row.used.tries}",
        step,
        loss,
        "-" if row.seen is None else age_text(max(0.0, time.time() - row.seen)),
        values_text(row.values),
        "" if row.used.cents is None else _dollars(row.used.cents),
        "".join((row.why or "").splitlines()[:1]),
    )


def table(rows: Sequence[ItemRow], width: int | None) -> Layout:
    """Lay out rows as lines for a width."""
    return lay_out(*_columns_of(rows), width)


def shape(row: ItemRow) -> BatchItem:
    """Return a row in the shape of `--json`."""
    from launcher.cli.json_output.run_shapes import BatchItem
    from launcher.values.public_result import as_json

    loss = as_json(row.loss) if isinstance(row.loss, float) else row.loss
    return BatchItem(
        name=row.name,
        run=row.run,
        host=row.host,
        state=row.state,
        step=row.step,
        steps=row.steps,
        loss=loss,
        seen=row.seen,
        why=row.why,
        hours=row.used.run_s / HOUR_S if row.used.tries else None,
        gpu_hours=row.used.gpu_s / HOUR_S if row.used.tries else None,
        cost=None if row.used.cents is None else row.used.cents / 100,
        values=dict(row.values),
    )


def print_rows(rows: Sequence[ItemRow], batch: str, *, as_json: bool = False) -> None:
    """Print rows as a table with a note on omitted columns, or as one JSON object per line."""
    if not as_json:
        if left_out := print_columns(*_columns_of(rows)):
            complain(f"  not shown: {', '.join(left_out)}   launch batch status {batch} --json")
        return
    from launcher.cli.output.answer import answer

    for row in rows:
        answer(shape(row))


def print_status(queue: BatchQueue, *, as_json: bool) -> None:
    """Print the items' states, the totals, and the process that runs the batch."""
    if as_json:
        print_rows(_rows_now(queue, queue.items(), Usage(queue).now()), queue.name, as_json=True)
    else:
        tell_status(queue, say)


def tell_status(queue: BatchQueue, tell: Callable[[str], None], *, shows_rows: bool = True) -> list[Item]:
    """Print the items' states. Pass to `tell` the totals, next commands, worker process and remaining rentals. Return the items."""
    items, used = queue.items(), Usage(queue).now()
    rows = _rows_now(queue, items, used)
    if shows_rows:
        print_rows(rows, queue.name)
    tell(f"{queue.name}: {totals(row.state for row in rows)}{spent(queue, used)}")
    for line in (*next_commands(queue, items), *who_works(queue, items), *left_rentals(queue)):
        tell(line)
    return items


def _rows_now(queue: BatchQueue, items: Sequence[Item], used: Mapping[int, Used]) -> list[ItemRow]:
    return rows_of(items, used=used, is_worked=worker_of(queue) is not None)


def tell_mended(queue: BatchQueue, work: Work) -> None:
    """Print the launches that the queue's file had lost, if any."""
    if work.mended:
        complain(
            f"{queue.folder / FILE}: had lost the launches of {', '.join(work.mended)}: it was cut off, or is an older copy\n"
            "  each is searched for on its host, and launched again only if it is missing"
        )


def who_works(queue: BatchQueue, items: Sequence[Item]) -> list[str]:
    """Return lines with the process that runs a batch or, without one, the command to resume it; none for an ended batch."""
    if (worker := worker_of(queue)) is not None:
        return [f"{worker.words} runs it"]
    if all(item.state == ItemState.ENDED for item in items):
        return []
    return [
        "no process runs it: running items continue, queued items wait",
        f"  continue it     launch batch resume {queue.name}",
    ]


def left_rentals(queue: BatchQueue) -> list[str]:
    """Return warnings about a batch's rented machines: the run has ended, or no process here ends the machine in time."""
    if queue.rules.max_cost is None:
        return []
    from launcher.rental.open_rentals import open_rentals

    runs, found = queue.runs(), open_rentals()
    own = tuple(one for one in found.rentals if one.rental.intent.run in runs)
    ended = {item.run for item in queue.items(ItemState.ENDED)}
    kept = [one.kept_words for one in own if one.is_kept and one.problem is None and one.run in ended]
    return [f"! {words}" for words in (*found._replace(rentals=own).warnings(), *kept)]


def next_commands(queue: BatchQueue, items: Sequence[Item]) -> list[str]:
    """Return the next commands for items that did not succeed, once all items have ended; none if all succeeded."""
    if not items or any(item.state != ItemState.ENDED for item in items):
        return []
    lines = []
    if failed := [item for item in items if item.run is not None and item.outcome == "failed"]:
        run = (failed[0].run or "").rpartition("-")[2]
        lines.append(f"  its log      launch logs {run}    ({failed[0].name})")
    if refused := next((item for item in items if item.outcome == REFUSED and item.why), None):
        lines += [f"  {refused.name} was refused: {(refused.why or '').replace(LF, LF + '  ')}"]
        lines.append(
            f"  the batch does not read its file again: to change it   launch batch rm {queue.name}   then launch the changed file"
        )
    if any(item.outcome != "succeeded" for item in items):
        lines.append(f"  once more    launch batch resume {queue.name} --failed")
    if any(item.outcome == DROPPED and "max_failures" in (item.why or "") for item in items):
        lines.append(f"  with another limit   launch batch resume {queue.name} --failed --max-failures N")
    return lines


def print_batch(name: str, items: Sequence[Item], worker: Worker | None) -> None:
    """Print a batch as a JSON object."""
    from launcher.cli.json_output.run_shapes import BatchRow
    from launcher.cli.output.answer import answer

    states = Counter(map(state_of, items))
    answer(BatchRow(name=name, items=dict(states), worker=None if worker is None else worker.pid))


def print_list(*, as_json: bool) -> None:
    """Print the batches of this client, the latest first, with item counts by state and the worker process."""
    found = []
    for name in names()[::-1]:
        try:
            with open_queue(name, only_looks=True) as queue:
                items, worker = queue.items(), worker_of(queue)
        except (BadFileError, RunError) as error:
            complain(str(error))
            continue
        found.append((name, items, worker))
    if as_json:
        for name, items, worker in found:
            print_batch(name, items, worker)
        return
    if not found:
        say(
            f"no batches in {batches_folder()}: they are in the folder where they were made",
            "  next   launch batch FILE.toml",
        )
        return
    columns = Column("BATCH"), Column("ITEMS", 20), Column("WORKED BY", 12, drop=1)
    print_columns(
        columns,
        [
            (
                name,
                totals(map(state_of, items)),
                "-" if worker is None else worker.words,
            )
            for name, items, worker in found
        ],
    )


def print_stopped(queue: BatchQueue, stopped: Sequence[Stopped], *, as_json: bool) -> int:
    """Print the result for each item. Return the exit code: 4 if a run could not be reached, else 0."""
    rows = [
        row._replace(state=one.state, why=one.problem or one.why)
        for one, row in zip(stopped, rows_of([one.item for one in stopped]), strict=True)
    ]
    if rows or as_json:
        print_rows(rows, queue.name, as_json=as_json)
    else:
        say(f"{queue.name}: everything had ended")
    if rows and not as_json:
        # The queue may lack a state that another process has yet to record.
        known = {one.item.number: one.state for one in stopped}
        say(f"{queue.name}: {totals(known.get(item.number, state_of(item)) for item in queue.items())}")
        say(f"  run stopped or dropped items again   launch batch resume {queue.name} --failed")
    if lost := [one for one in stopped if one.problem]:
        count = "1 run" if len(lost) == 1 else f"{len(lost)} runs"
        complain(f"{count} could not be stopped   once their hosts answer: launch batch stop {queue.name}")
    elif (worker := worker_of(queue)) is not None:
        complain(
            f"{worker.words} has not recorded the end of every run yet   launch batch status {queue.name}"
        )
    for line in left_rentals(queue):
        complain(line)
    return 4 if lost else 0
