"""A batch as a table: an item a line, and the totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.cli.columns import Column, Layout, lay_out, print_columns
from launcher.cli.figures import age_text
from launcher.cli.say import complain, say
from launcher.runs.batch_queue import FILE, BatchQueue, Work, worker_of
from launcher.runs.batch_status import ItemRow, age_s, costs, rows_of, totals
from launcher.values.queued_item import Item, ItemState

if TYPE_CHECKING:
    from launcher.cli.json_shapes import BatchItem
    from launcher.runs.batch_stopping import Stopped

COLUMNS = (
    Column("ITEM", 10),
    Column("RUN", drop=4),
    Column("HOST", 6, drop=3),
    Column("STATE", 12),
    Column("STEP", drop=1),
    Column("LOSS", drop=2),
    Column("SEEN", drop=6),
    Column("", 16, drop=5),
)


COST = Column("COST", drop=4, is_figure=True)
"""It is there only where something was rented."""


def _with_costs(rows: Sequence[ItemRow]) -> tuple[tuple[Column, ...], list[tuple[str, ...]]]:
    """Return the columns of rows, and their cells."""
    if all(row.cents is None for row in rows):
        return COLUMNS, [cells(row) for row in rows]
    found = [(*cells(row)[:-1], _dollars(row), cells(row)[-1]) for row in rows]
    return (*COLUMNS[:-1], COST, COLUMNS[-1]), found


def _dollars(row: ItemRow) -> str:
    from launcher.values.renting import dollars  # few batches rent

    return "-" if row.cents is None else dollars(row.cents)


def spent(queue: BatchQueue, cents: Mapping[int, int]) -> str:
    """Say what a batch has cost of what it may; nothing for one that rents nothing."""
    if (most := queue.max_cost) is None:
        return ""
    from launcher.values.renting import dollars

    return f"; {dollars(sum(cents.values()))} of ${most:.2f}"


def cells(row: ItemRow) -> tuple[str, ...]:
    """Return the cells of a row, without its cost."""
    step = "-" if row.step is None else f"{row.step}/{row.steps}" if row.steps else str(row.step)
    loss = "-" if row.loss is None else f"{row.loss:.4g}" if isinstance(row.loss, float) else str(row.loss)
    age = age_s(row)
    why = (row.why or "").splitlines()
    return (
        row.name,
        row.short,
        row.host or "-",
        row.state,
        step,
        loss,
        "-" if age is None else age_text(age),
        why[0] if why else "",
    )


def table(rows: Sequence[ItemRow], width: int | None) -> Layout:
    """Return rows as lines in a width."""
    return lay_out(*_with_costs(rows), width)


def shape(row: ItemRow) -> BatchItem:
    """Return a row as --json prints it."""
    from launcher.cli.json_shapes import BatchItem
    from launcher.runs.curves import as_json

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
        cost=None if row.cents is None else row.cents / 100,
        values=dict(row.values),
    )


def print_rows(rows: Sequence[ItemRow], *, as_json: bool = False) -> None:
    """Print rows as a table, or an object a line."""
    if not as_json:
        print_columns(*_with_costs(rows))
        return
    from launcher.cli.answer import answer

    for row in rows:
        answer(shape(row))


def print_status(queue: BatchQueue, *, as_json: bool) -> None:
    """Print how far each item is, and who works the batch."""
    items, cents = queue.items(), costs(queue)
    print_rows(rows_of(items, cents=cents), as_json=as_json)
    if as_json:
        return
    say(f"{queue.name}: {totals(items)}{spent(queue, cents)}")
    for line in who_works(queue, items):
        say(line)


def tell_mended(queue: BatchQueue, work: Work) -> None:
    """Say which launches a queue had lost, if there are any."""
    if work.mended:
        complain(
            f"{queue.folder / FILE}: had lost the launches of {', '.join(work.mended)}: it was cut off, or is an older copy\n"
            "  each is looked for where it was to run, and launched again only if it is not there"
        )


def who_works(queue: BatchQueue, items: Sequence[Item]) -> list[str]:
    """Say who works a batch, or that nobody does and what goes on with it; nothing for one that has ended."""
    if (worker := worker_of(queue)) is not None:
        return [f"process {worker.pid} on {worker.machine} works it"]
    if all(item.state == ItemState.ENDED for item in items):
        return []
    return [
        f"no process works it: what runs goes on, what is queued waits   launch batch resume {queue.name}"
    ]


def print_stopped(queue: BatchQueue, stopped: Sequence[Stopped], *, as_json: bool) -> int:
    """Print what became of each item; return the exit code: 4 if a run could not be reached."""
    rows = [
        row._replace(state=one.state, why=one.problem or row.why)
        for one, row in zip(stopped, rows_of([one.item for one in stopped]), strict=True)
    ]
    if rows or as_json:
        print_rows(rows, as_json=as_json)
    else:
        say(f"{queue.name}: everything had ended")
    if lost := [one for one in stopped if one.problem]:
        complain(
            f"{len(lost)} runs could not be stopped   once their hosts answer: launch batch stop {queue.name}"
        )
    return 4 if lost else 0
