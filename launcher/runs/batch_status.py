"""How far the items of a batch are, in rows: from its queue and the copies of its runs here. No host is asked."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.runs.batch_usage import NOTHING, Took, Used
from launcher.runs.runs_folder import runs_folder
from launcher.values.queued_item import Item, ItemState
from launcher.values.states import State

if TYPE_CHECKING:
    from launcher.runs.item_view import ItemView
    from launcher.runs.mirror import Mirror


WAITS = "waits for"
UNWORKED = "no process works the batch"
_WORDS = {
    ItemState.CONFIRMED: "begun",
    ItemState.RESERVED: "launching",
    ItemState.SUBMITTED: "launching",
}
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
    """An item as a table shows it. `state` is its run's where it has one, else the queue's word.

    `seen` is when its host was last heard, in seconds since 1970. `why` says what it waits for, or why it ended. `took` is how long
    all of its runs took together, `cents` what was rented for it has cost; None if there was none. `tries` is how many of them began.
    """

    name: str
    run: str | None
    host: str | None
    state: str
    step: int | None
    steps: int | None
    loss: float | str | None
    seen: float | None
    why: str | None
    values: Mapping[str, Any]
    took: Took | None = None
    cents: int | None = None
    tries: int = 1

    @property
    def short(self) -> str:
        """The last part of its run's id."""
        return "-" if self.run is None else self.run.rpartition("-")[2]


def rows_of(
    items: Iterable[Item],
    live: Mapping[int, ItemView] | None = None,
    used: Used = NOTHING,
    *,
    is_worked: bool = True,
) -> list[ItemRow]:
    """Return a row for each item. `live` is what a worker knows of those that it launches and follows, `used` what they have taken.

    Where nobody works the batch, that is what its queued items wait for.
    """
    live = live or {}
    rows = []
    for item in items:
        took, cents = used.took.get(item.number), used.cents.get(item.number)
        row = _row(item, live.get(item.number))._replace(took=took, cents=cents)
        row = row._replace(tries=used.tries.get(item.number, 1))
        waits = item.state == ItemState.QUEUED and (item.why is None or item.why.startswith(WAITS))
        rows.append(row if is_worked or not waits else row._replace(why=UNWORKED))
    return rows


def state_of(item: Item, view: ItemView | None = None) -> str:
    """Return how far an item is, in the words of `ps` where its run is there. Nothing is read."""
    if view is not None and view.doing is None and view.state is not None:
        return str(view.state.state)
    return item.outcome or _WORDS.get(item.state, str(item.state))


def last_state(item: Item) -> str:
    """Return how far an item is by the copy of its run here, `begun` while that knows no state; of a job in a queue it is `reserved`."""
    if item.state != ItemState.CONFIRMED or item.run is None:
        return state_of(item)
    from launcher.runs.mirror import Mirror  # what was not begun has none

    last = Mirror(item.run, runs_folder()).state()
    return state_of(item) if last is None else str(last.state)


def _row(item: Item, view: ItemView | None) -> ItemRow:
    if view is not None:
        state = view.doing or state_of(item, view)
        trouble = view.state and view.state.trouble and view.state.trouble.kind
        why = view.lost_for or trouble or view.waits_for
        return _as_row(item, state, view.step, view.steps, view.loss, view.seen, why)
    if item.run is None or item.state in (ItemState.RESERVED, ItemState.SUBMITTED):
        return _as_row(item, state_of(item))
    from launcher.runs.mirror import Mirror  # what was not begun has none

    mirror = Mirror(item.run, runs_folder())
    reached, last = mirror.last_step(), mirror.state()
    known = item.outcome or (str(last.state) if last is not None else state_of(item))
    why = _goes_on(mirror) if item.outcome != State.SUCCEEDED else None
    return _as_row(item, known, reached.step, mirror.plan().steps, reached.loss, mirror.reached(), why)


def _goes_on(mirror: Mirror) -> str | None:
    from launcher.runs.departures import words_of

    return words_of(mirror)


def _as_row(
    item: Item,
    state: str,
    step: int | None = None,
    steps: int | None = None,
    loss: float | str | None = None,
    seen: float | None = None,
    why: str | None = None,
) -> ItemRow:
    return ItemRow(
        item.name, item.run, item.host, state, step, steps, loss, seen, why or item.why, item.values
    )


def totals(states: Iterable[str]) -> str:
    """Say how many items are in which state, e.g. `40 items: 12 succeeded, 1 failed, 6 running, 21 queued`."""
    counts = Counter(states)
    words = [f"{counts[state]} {state}" for state in sorted(counts, key=_place)]
    count = counts.total()
    return f"{count} {'item' if count == 1 else 'items'}: {', '.join(words)}"


def _place(state: str) -> tuple[int, str]:
    return (_ORDER.index(state) if state in _ORDER else _ORDER.index("running"), state)


def launches(count: int) -> str:
    """Say how many launches there are."""
    return "1 launch" if count == 1 else f"{count} launches"


def values_text(values: Mapping[str, Any]) -> str:
    """Write values of the matrix for people: lr=0.0001, seed=1."""
    return ", ".join(
        f"{key.rpartition('.')[2]}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in values.items()
    )


def age_s(row: ItemRow) -> float | None:
    """Return how long ago a row's host was last heard; None if it never was."""
    return None if row.seen is None else max(0.0, time.time() - row.seen)
