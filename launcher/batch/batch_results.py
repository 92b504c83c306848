"""The results of a batch: results.csv with a line per item, one picture of all curves, and the best run."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base.text import first_of
from launcher.base.toml import parse_toml
from launcher.batch.batch_item import request_of, run_of
from launcher.batch.batch_queue import PICTURE, RESULTS, BatchQueue
from launcher.batch.batch_status import values_text
from launcher.batch.batch_usage import HOUR_S, Usage, Used
from launcher.batch.input.batch_definition import Rules
from launcher.batch.queued_item import Item
from launcher.compare.code_differences import shortened
from launcher.compare.comparing import ComparedRun, Comparison, compare, draw
from launcher.copy.local_copy import LocalCopy
from launcher.copy.runs_folder import runs_folder
from launcher.errors import HostError, RunError
from launcher.metrics.csv_cell import cell
from launcher.metrics.metric_results import Goal
from launcher.runs.follow.view import NullStage
from launcher.runs.pull.pulling import Choice, pull
from launcher.runs.run_client import open_client
from launcher.values.parsing import nearest

_FIRST = (
    "item",
    "run",
    "host",
    "card",
    "state",
    "reason",
    "tries",
    "attempts",
    "seconds",
    "hours",
    "gpu hours",
    "cost",
    "code",
)
_GIVEN = "given"
"""The prefix for a setting named like a column: `given host` is the matrix value, `host` the run's host."""


class BestItem(NamedTuple):
    """The best run of a batch, and its value of the deciding metric."""

    item: str
    run: str
    metric: str
    value: float
    step: int | None


class Results(NamedTuple):
    """The written files, and the best run if known. `problems` are failures, one line each."""

    table: Path | None
    picture: Path | None
    best: BestItem | None
    problems: tuple[str, ...]


def write_results(queue: BatchQueue) -> Results:
    """Write the results of a batch beside its queue.

    If only the best run's files are wanted, download them.
    """
    items, rules = queue.items(), queue.rules
    metric, goal = _goal(rules.best)
    with_runs = [item for item in items if item.run is not None]
    comparison = _comparison(with_runs, rules)
    compared = _by_run(comparison)
    problems: list[str] = []
    table: Path | None = queue.folder / RESULTS
    removed = [item for item in with_runs if not LocalCopy(run_of(item), runs_folder()).files.is_folder()]
    earlier = _earlier(queue, {run_of(item) for item in removed})
    if removed:
        problems.append(
            f"the record of {first_of([item.name for item in removed])} is not here: it is not compared, and the table keeps its earlier values"
        )
    try:
        queue.files.write(RESULTS, _csv(items, compared, Usage(queue).now(), earlier).encode())
    except OSError as error:
        problems.append(f"{table}: {error.strerror}")
        table = None
    picture = None
    try:
        labels = {item.run: values_text(item.values) for item in with_runs if item.run and item.values}
        if comparison is not None and draw(comparison, queue.files, PICTURE, labels):
            picture = queue.folder / PICTURE
    except (OSError, RunError) as error:
        problems.append(f"{queue.folder / PICTURE}: {error}")
    best = _best(with_runs, compared, metric, goal)
    if metric is not None and compared and (known := _reported(compared)) and metric not in known:
        problems.append(f"best = {rules.best}: no run has reported {metric}{nearest(metric, known)}")
    if best is not None and rules.artifacts == "best":
        problems += _download_files(best)
    return Results(table, picture, best, tuple(problems))


def written_results(queue: BatchQueue) -> Results:
    """Return the files that another process has written, and the best run, without a download."""
    table, picture = (
        queue.folder / name if queue.files.is_file(name) else None for name in (RESULTS, PICTURE)
    )
    rules, with_runs = queue.rules, [item for item in queue.items() if item.run is not None]
    compared = _by_run(_comparison(with_runs, rules)) if rules.best else {}
    return Results(table, picture, _best(with_runs, compared, *_goal(rules.best)), ())


def _comparison(with_runs: Sequence[Item], rules: Rules) -> Comparison | None:
    metric, goal = _goal(rules.best)
    local_copies = [LocalCopy(run_of(item), runs_folder()) for item in with_runs]
    return compare(local_copies, {metric: goal} if metric and goal else {}) if local_copies else None


def _by_run(comparison: Comparison | None) -> dict[str, ComparedRun]:
    return {run.local_copy.run: run for run in comparison.runs} if comparison is not None else {}


def _goal(best: str | None) -> tuple[str | None, Goal | None]:
    """Split `loss:min`."""
    if best is None:
        return None, None
    metric, _, goal = best.rpartition(":")
    return metric, "min" if goal == "min" else "max"


def _earlier(queue: BatchQueue, runs: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the rows of some runs in an earlier table. An unreadable table has none."""
    try:
        text = io.StringIO(queue.files.read(RESULTS).decode(), newline="")
        rows = [row for row in csv.DictReader(text) if row.get("run") in runs]
        return {row["run"]: {key: cell(value) for key, value in row.items()} for row in rows}
    except (OSError, ValueError, csv.Error):
        return {}


def _csv(
    items: Sequence[Item],
    compared: Mapping[str, ComparedRun],
    used: Mapping[int, Used],
    earlier: Mapping[str, Mapping[str, str]],
) -> str:
    """Return the table as text: the properties of each item, and the final and best value of each metric.

    Only metrics with a best value are included. For a run whose record was removed, values that are no longer
    known are taken from its row of an `earlier` table.
    """
    columns = [key for row in earlier.values() for key in row if key and key.endswith(" final")]
    metrics = [
        *(name for run in compared.values() for name, one in run.metrics.items() if one.goal is not None),
        *(column.removesuffix(" final") for column in columns),
    ]
    measured = [f"{name} {which}" for name in dict.fromkeys(metrics) for which in ("final", "best")]
    others = {*_FIRST, *measured}
    settings = {
        item.number: {
            f"{_GIVEN} {key}" if key in others else key: one for key, one in _settings(item).items()
        }
        for item in items
    }
    header = [*_FIRST, *(key for found in settings.values() for key in found), *measured]
    out = io.StringIO()
    writer = csv.DictWriter(out, [*dict.fromkeys(map(_cell, header))], extrasaction="ignore")
    writer.writeheader()
    for item in items:
        run = compared.get(item.run or "")
        found = {**_first(item, run, used.get(item.number, Used())), **settings[item.number]}
        for name, one in run.metrics.items() if run is not None else ():
            found |= {f"{name} final": one.final, f"{name} best": one.best}
        known = {_cell(key): _cell(value) for key, value in found.items() if value is not None}
        writer.writerow({**earlier.get(item.run or "", {}), **known})
    return out.getvalue()


def _first(item: Item, run: ComparedRun | None, used: Used) -> dict[str, Any]:
    reason = (item.why or "").splitlines()
    values = [
        item.name,
        item.run,
        item.host,
        run.card if run is not None else None,
        item.outcome or str(item.state),
        reason[0] if reason else None,
        used.tries or None,
        run.attempts if run is not None else None,
        None if run is None or run.seconds is None else round(run.seconds, 1),
        *(f"{seconds / HOUR_S:.4f}" if used.tries else None for seconds in (used.run_s, used.gpu_s)),
        None if used.cents is None else f"{used.cents / 100:.2f}",
        shortened(run.code) if run is not None and run.code is not None else None,
    ]
    return dict(zip(_FIRST, values, strict=True))


def _settings(item: Item) -> dict[str, Any]:
    """Return an item's matrix values and its settings."""
    given = {}
    for setting in request_of(item).settings:
        key, _, written = setting.partition("=")
        given[key] = parse_toml(f"value = {written}", key)["value"]
    return {**{key: value for key, value in given.items() if key not in item.values}, **item.values}


def _reported(compared: Mapping[str, ComparedRun]) -> list[str]:
    """Return the metrics that runs have reported."""
    return [*dict.fromkeys(name for run in compared.values() for name in run.metrics)]


def _cell(value: Any) -> Any:
    """Return a value, a list or a table as a cell."""
    if isinstance(value, dict | list):
        value = json.dumps(value)
    return cell(value)


def _best(
    items: Sequence[Item], compared: Mapping[str, ComparedRun], metric: str | None, goal: Goal | None
) -> BestItem | None:
    """Return the succeeded run with the best value of a metric."""
    if metric is None:
        return None
    found = []
    for item in items:
        result = compared[item.run or ""].metrics.get(metric)
        if item.outcome == "succeeded" and result is not None and result.best is not None:
            found.append(BestItem(item.name, item.run or "", metric, result.best, result.best_step))
    finite = [one for one in found if math.isfinite(one.value)]
    return (min if goal == "min" else max)(finite, key=lambda one: one.value) if finite else None


def _download_files(best: BestItem) -> list[str]:
    """Download the best run's files. Return the problems."""
    local_copy = LocalCopy(best.run, runs_folder())
    try:
        with open_client(local_copy.host(), local_copy) as client:
            pulled = pull(client, local_copy, Choice(local_copy.record.plan().pull_limit), NullStage())
    except (HostError, RunError) as error:
        return [f"{str(error).splitlines()[0]}   launch pull {local_copy.short}"]
    left = len(pulled.over_limit) + len(pulled.left_out)
    return [f"{left} files of {best.run} are not here   launch pull {local_copy.short} --all"] if left else []
