"""ps: the runs and their states."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from launcher.cli.figures import age_text
from launcher.cli.options import AcceptFlag, HostOption, JsonFlag
from launcher.cli.say import say

if TYPE_CHECKING:
    from launcher.runs.control import Row


def ps(host: HostOption = None, _accept: AcceptFlag = False, as_json: JsonFlag = False) -> None:
    """List the runs of this client, or all runs of one host.

    Examples:  launch ps     launch ps --host lab
    """
    from launcher.runs.control import listing

    rows = listing(host)
    if as_json:
        runs = [{**row.values, "host": row.host, "problem": row.problem} for row in rows]
        print(json.dumps({"version": 1, "runs": runs}))
        return
    if not rows:
        say("no runs yet", "  next   launch")
        return
    _show(rows)


def _show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from launcher.hosts.agent import printable

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("RUN", "JOB", "HOST", "CARD", "STATE", "STEP", "LOSS", "AGE", ""):
        table.add_column(title, overflow="ellipsis", no_wrap=title in ("RUN", "STEP", "LOSS", "AGE"))
    for row in rows:
        values = row.values
        cells = (
            str(values["run"]).rpartition("-")[2],
            values.get("job") or "-",
            row.host,
            f"{values.get('card') or '-'}{', rehearsed' if values.get('rehearsed') else ''}",
            _state(row),
            _step(values),
            _loss(values.get("loss")),
            _age(values.get("time")),
            f"last seen {values.get('state')}; {row.problem}" if row.problem else _why(values),
        )
        table.add_row(*(Text(printable(str(cell))) for cell in cells))
    Console(highlight=False).print(table)


def _why(values: dict[str, Any]) -> str:
    """Return why a run failed or is in doubt, else the remedy behind its current attempt."""
    from launcher.runs.evidence import diagnosis, words

    evidence, remedy = values.get("evidence"), values.get("remedy")
    if why := diagnosis(evidence).get("why"):
        return why
    if remedy and not evidence:
        return f"after {remedy.get('class')} in attempt {remedy.get('attempt')}: {remedy.get('text')}"
    return ", ".join(words(evidence))


def _state(row: Row) -> str:
    if row.problem:
        return "unreachable"
    state, attempt = str(row.values.get("state")), row.values.get("attempt") or 1
    reason = row.values.get("reason")
    words = state if attempt == 1 else f"{state}, attempt {attempt}"
    return f"{words}: {reason}" if reason and state in ("failed", "waiting", "resuming") else words


def _step(values: dict[str, Any]) -> str:
    step, steps = values.get("step"), values.get("steps")
    return "-" if step is None else f"{step}/{steps}" if steps else str(step)


def _loss(loss: object) -> str:
    return f"{loss:.4g}" if isinstance(loss, int | float) else str(loss or "-")


def _age(began: float | None) -> str:
    if began is None:
        return "-"
    return age_text(time.time() - began)
