"""The progress of a batch's items, in rows: from its queue and the local copies of its runs.

No host is contacted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.batch.batch_usage import Used
from launcher.batch.queued_item import Item, ItemState
from launcher.copy.runs_folder import runs_folder
from launcher.values.states import State

if TYPE_CHECKING:
    from launcher.batch.item_view import ItemView

WAITS = "waits for"
UNWORKED = "no process runs the batch"
_WORDS = {ItemState.CONFIRMED: "begun", ItemState.RESERVED: "launching"}
_ORDER = (
    "succeeded",
    "failed",
    "stopped",
    "stop-incomplete",
    "refused",
    "dropped",
    "running",
    "begun",
    "launching",
    "queued",
)


class ItemRow(NamedTuple):
    """An item as a row of a table. `seen` is the time of its host's last answer, in seconds since 1970.

    `why` is the reason why it waits or ended.
    """

    name: str
    run: str | None
    host: str | None
    state: str
    why: str | None
    values: Mapping[str, Any]
    used: Used
    step: int | None = None
    steps: int | None = None
    loss: float | str | None = None
    seen: float | None = None

    @property
    def short(self) -> str:
        """The last part of its run's id."""
        return "-" if self.run is None else self.run.rpartition("-")[2]


def rows_of(
    items: Iterable[Item],
    live: Mapping[int, ItemView] | None = None,
    used: Mapping[int, Used] | None = None,
    *,
    is_worked: bool = True,
) -> list[ItemRow]:
    """Return a row for each item. `live` are the worker's views of running items, `used` their usage so far.

    Without a worker, queued items wait for one.
    """
    live, used = live or {}, used or {}
    rows = [_row(item, live.get(item.number), used.get(item.number, Used())) for item in items]
    if is_worked:
        return rows
    waits = (row.state == ItemState.QUEUED and (row.why or WAITS).startswith(WAITS) for row in rows)
    return [row._replace(why=UNWORKED) if one else row for row, one in zip(rows, waits, strict=True)]


def state_of(item: Item, view: ItemView | None = None) -> str:
    """Return an item's state: from its worker's view, else from the local copy of its run.

    If its run exists, the state is worded as in `launch ps`.
    """
    if view is not None and view.doing is None and view.state is not None:
        return str(view.state.state)
    if item.state == ItemState.CONFIRMED and item.run is not None and view is None:
        from launcher.copy.local_copy import LocalCopy  # an item that was not begun has no local copy

        if (last := LocalCopy(item.run, runs_folder()).state()) is not None:
            return str(last.state)
    return item.outcome or _WORDS.get(item.state, str(item.state))


def _row(item: Item, view: ItemView | None, used: Used) -> ItemRow:
    row = ItemRow(item.name, item.run, item.host, state_of(item, view), item.why, item.values, used)
    if view is not None:
        trouble = view.state and view.state.trouble and view.state.trouble.kind
        row = row._replace(step=view.step, steps=view.steps, loss=view.loss, seen=view.seen)
        why = view.lost_for or trouble or view.waits_for or item.why
        return row._replace(state=view.doing or row.state, why=why)
    if item.run is None or item.state == ItemState.RESERVED:
        return row
    from launcher.copy.local_copy import LocalCopy
    from launcher.copy.move_records import words_of  # an item that was not begun needs neither

    local_copy = LocalCopy(item.run, runs_folder())
    reached = local_copy.record.last_step()
    moved = words_of(local_copy) if item.outcome != State.SUCCEEDED else None
    row = row._replace(step=reached.step, loss=reached.loss, seen=local_copy.reached())
    return row._replace(steps=local_copy.record.plan().steps, why=moved or item.why)


def totals(states: Iterable[str]) -> str:
    """Return the number of items per state, e.g. `40 items: 12 succeeded, 1 failed, 6 running, 21 queued`."""
    counts = Counter(states)
    words = [f"{counts[state]} {state}" for state in sorted(counts, key=_place)]
    count = counts.total()
    return f"{count} {'item' if count == 1 else 'items'}: {', '.join(words)}"


def _place(state: str) -> tuple[int, str]:
    return (_ORDER.index(state) if state in _ORDER else _ORDER.index("running"), state)


def launches(count: int) -> str:
    """Return a number of launches as text."""
    return "1 launch" if count == 1 else f"{count} launches"


def values_text(values: Mapping[str, Any]) -> str:
    """Return matrix values as text for users: lr=0.0001, seed=1."""
    return ", ".join(
        f"{key.rpartition('.')[2]}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in values.items()
    )
