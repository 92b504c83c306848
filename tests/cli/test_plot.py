"""plot: the loss in a terminal of any width and alphabet, and the path of a picture that has all panels."""

import json
import math
import time
from itertools import pairwise

import pytest
from rich.cells import cell_len
from testbed.pty_run import in_terminal, without_style
from testbed.tables import mostly_long

from launcher.cli.output.chart import chart
from launcher.copy.local_copy import LocalCopy
from launcher.metrics.curves import Point
from launcher.metrics.panels import panels_of
from launcher.values.host import Host

RUN = "261122-sft-w8q2zz"


@pytest.fixture
def measured(client):
    """A run that has ended: 60 steps of loss, three evaluations, a step whose loss was not finite."""
    local_copy = LocalCopy(RUN, client.runs)
    local_copy.bind_seen(Host(name="lab"), "", time.time())
    folder = local_copy.folder / "0001"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"state": "succeeded", "reason": "completed"}))
    event = {"version": 1, "kind": "metric", "attempt": 1}
    lines = []
    for step in range(1, 61):
        values = {"loss": 4 / step, "learning_rate": 1e-4 * (60 - step), "grad_norm": 1.0}
        values |= {"loss": "nan"} if step == 30 else {}
        values |= {"eval_loss": 2.0} if step % 20 == 0 else {}
        lines.append({**event, "step": step, "time": float(step), "values": values})
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return client


@mostly_long("columns", [200, 120, 80, 40], ci=(2,))
def test_the_loss_is_drawn_in_the_width_of_the_terminal(measured, columns):
    """Evaluations and the loss that was not finite are marked; other panels are a line each, the path comes last."""
    lines = without_style(in_terminal(measured, "plot", RUN, columns=columns)).splitlines()
    start = next(number for number, line in enumerate(lines) if "(loss)" in line)
    end = next(number for number, line in enumerate(lines) if line.endswith("(step)"))
    drawn = lines[start:end]
    assert max(map(cell_len, lines[start:-1])) <= columns
    assert max(map(cell_len, drawn)) > columns / 2
    assert sum("o" in line.partition("|")[2] for line in drawn) == 1  # all three evaluations at one height
    assert max(line.count("o") for line in drawn[1:]) == 3
    assert drawn[-1].count("x") == 1
    assert any(line.split()[:2] == ["learning", "rate"] for line in lines)
    assert lines[-1].endswith("loss.png")
    assert LocalCopy(RUN, measured.runs).picture.read_bytes().startswith(b"\x89PNG")


@mostly_long("variables", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "latin-1"}], ci=(0,))
def test_a_terminal_without_the_letters_gets_ascii(measured, variables):
    """No question marks in place of a curve."""
    shown = in_terminal(measured, "plot", RUN, columns=80, **variables)
    assert "(loss)" in shown
    assert "***" in shown
    assert "?" not in shown.partition("(loss)")[2]
    assert shown.partition("(loss)")[2].isascii()


def test_a_pipe_gets_the_path_alone_and_json_an_object(measured):
    """For scripts."""
    path = str(LocalCopy(RUN, measured.runs).picture)
    assert measured.ok("plot", RUN) == f"{path}\n"
    assert json.loads(measured.ok("plot", RUN, "--json")) == {
        "version": 1,
        "kind": "plot",
        "run": RUN,
        "path": path,
    }


def points(values):
    return [Point(1, 0, step, float(step), "loss", value) for step, value in enumerate(values, 1)]


def drawn(values, *, is_ascii=True):
    return chart(panels_of(points(values))[0], 80, 8, is_ascii=is_ascii)


def test_a_value_that_is_not_finite_breaks_the_line_and_is_marked():
    """It is never drawn as a zero, nor bridged."""
    lines = drawn([1.0] * 10 + [math.nan] * 10 + [1.0] * 10)
    row = next(line for line in lines if "***" in line)
    assert "*   " in row.rstrip()
    assert "   *" in row.partition("***")[2]
    assert sum(line.count("x") for line in lines[:-2]) >= 8


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0, 2.0], [math.nan], [math.inf, -math.inf], [1e99, -1e99]])
def test_the_strangest_curves_have_a_chart(values):
    """One value, a level one, none that is finite, the largest."""
    lines = drawn(values)
    assert lines[-1].split() or lines[-2].split()
    assert all(len(line) <= 80 for line in lines)


def test_a_wide_range_has_a_logarithmic_axis():
    """A straight line for an exponential, and ticks in the values themselves."""
    lines = drawn([10.0 ** -(step / 10) for step in range(60)])
    ticks = [float(line.split()[0]) for line in lines[1:9]]
    assert ticks[0] > 0.9
    assert 0 < ticks[-1] < 1e-5
    starts = [len(line) - len(line.partition("|")[2].lstrip()) for line in lines[2:8]]
    gaps = {after - before for before, after in pairwise(starts)}
    assert max(gaps) - min(gaps) <= 2


def test_steps_are_whole_and_stand_there_once():
    """Three steps have three ticks."""
    lines = drawn([3.0, 2.0, 1.0])
    assert lines[-1].replace("|", "").split() == ["1", "2", "3"]


@pytest.mark.parametrize("width", [40, 57, 80, 123, 200])
def test_the_last_step_has_a_tick(width):
    """Whatever the width; it is not one that the run never had."""
    lines = chart(panels_of(points([1.0] * 200))[0], width, 8, is_ascii=True)
    ticks = lines[-1].replace("|", "").split()
    assert (ticks[0], ticks[-1]) == ("1", "200")
    assert max(map(len, lines)) <= width
