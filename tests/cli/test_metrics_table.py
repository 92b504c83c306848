"""metrics: a line for each step, a column for each name; in a narrow terminal the losses stay."""

import json
import time

import pytest
from rich.cells import cell_len
from testbed.pty_run import in_terminal, without_style
from testbed.tables import mostly_long

from launcher.cli.text.metrics_table import metrics_table
from launcher.copy.local_copy import LocalCopy
from launcher.metrics.curves import Point
from launcher.values.host import Host

RUN = "261122-sft-w8q2zz"
NAMES = ("learning_rate", "grad_norm", "loss", "eval_rouge", "a_very_long_name_of_a_metric", "tokens_per_s")


def point(step, name, value, *, time=0.0, rank=0):
    return Point(1, rank, step, time, name, value)


def table(*measured):
    columns, rows = metrics_table(measured)
    return [column.title for column in columns], rows


@pytest.fixture
def measured(client):
    """A run that has ended, with six metrics at 30 steps, and one without a step."""
    local_copy = LocalCopy(RUN, client.runs)
    local_copy.bind_seen(Host(name="lab"), "", time.time())
    folder = local_copy.folder / "0001"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"state": "succeeded", "reason": "completed"}))
    event = {"version": 1, "kind": "metric", "attempt": 1}
    values = {name: 3.25 / (1 + number) for number, name in enumerate(NAMES)}
    lines = [{**event, "step": step, "time": float(step), "values": values} for step in range(30)]
    lines += [{**event, "time": 99.0, "values": {"final": 0.5}}]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return client


def test_a_step_is_a_line_with_the_losses_first():
    """Evaluations next, what is less important last; a dash where a step has no value."""
    titles, rows = table(
        *(("r", point(1, name, 0.5)) for name in ("zeta", "lr", "eval_f1", "loss")),
        ("r", point(2, "loss", float("nan"))),
    )
    assert titles == ["STEP", "loss", "eval_f1", "lr", "zeta"]
    assert rows == [["1", "0.5", "0.5", "0.5", "0.5"], ["2", "nan", "-", "-", "-"]]


def test_runs_and_ranks_are_told_apart_where_there_are_several():
    """A run that continues another, and a job of two ranks."""
    first, second = "261122-sft-aaaaaa", "261122-sft-bbbbbb"
    titles, rows = table((first, point(1, "loss", 2.0)), (second, point(2, "loss", 1.0)))
    assert (titles, rows) == (["RUN", "STEP", "loss"], [["aaaaaa", "1", "2"], ["bbbbbb", "2", "1"]])
    titles, rows = table(("r", point(1, "loss", 2.0)), ("r", point(1, "loss", 3.0, rank=1)))
    assert (titles, rows) == (["STEP", "RANK", "loss"], [["1", "0", "2"], ["1", "1", "3"]])


def test_values_without_a_step_are_beside_each_other_by_their_time():
    """Two of one moment are one line."""
    _, rows = table(
        ("r", point(None, "a", 1.0, time=5.0)),
        ("r", point(None, "b", 2.0, time=5.0)),
        ("r", point(None, "a", 3.0, time=6.0)),
    )
    assert [row[1:] for row in rows] == [["1", "2"], ["3", "-"]]
    assert {row[0][:3] for row in rows} == {"at "}


@mostly_long(("columns", "is_whole"), [(200, True), (120, True), (80, False), (40, False)], ci=(1, 2))
def test_it_fits_the_terminal_and_names_what_it_leaves_out(measured, columns, is_whole):
    """The command that has all stands beside the names."""
    lines = without_style(in_terminal(measured, "metrics", RUN, columns=columns)).splitlines()
    start = next(number for number, line in enumerate(lines) if "STEP" in line)
    del lines[:start]  # that the host has no such run
    assert max(map(cell_len, lines)) <= columns
    assert lines[0].split()[:2] == ["STEP", "loss"]
    assert sum(line.split()[0].isdigit() for line in lines) == 30
    text = " ".join(" ".join(lines).split())
    assert ("--csv has all" not in text) == is_whole
    if not is_whole:
        assert "not shown: " in text
        assert text.index("final") > text.index("not shown: ")


def test_a_pipe_gets_every_column(measured):
    """The note about times goes to standard error."""
    done = measured.run("metrics", RUN)
    assert {*NAMES, "final"} <= {*done.stdout.splitlines()[0].split()}
    assert "no step" in done.stderr
    assert "no step" not in done.stdout
