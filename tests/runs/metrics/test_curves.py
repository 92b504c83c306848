"""Metrics out of events: the latest attempt counts, and no number leaves as a token that strict JSON lacks."""

import csv
import io
import json
import math

import pytest
from testbed.measured import curve

from launcher.metrics.curves import points, record, write_table
from launcher.values.record import Event


def metric(step, attempt=1, rank=0, kind="metric", **values):
    return Event(version=1, kind=kind, attempt=attempt, rank=rank, step=step, time=7.5, values=values)


def refuse(token):
    raise AssertionError(f"not strict JSON: {token}")


def table(found):
    file = io.StringIO()
    write_table(found, file)
    return file.getvalue()


def losses(events):
    return [(one.step, one.attempt, one.value) for one in curve(events) if one.name == "loss"]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["as written", "turned round"])
def test_the_latest_attempt_wins_each_step(order):
    """Where two attempts passed a step the later one's value stands, in whatever order they are read."""
    written = {
        1: [metric(step, 1, loss=1.0) for step in (1, 2, 3)],
        2: [metric(step, 2, loss=2.0) for step in (3, 4)],
    }
    found = losses([*written[order[0]], *written[order[1]]])
    assert found == [(1, 1, 1.0), (2, 1, 1.0), (3, 2, 2.0), (4, 2, 2.0)]


def test_within_an_attempt_the_last_word_on_a_step_stands():
    """A script that logs a step twice means the second value."""
    assert losses([metric(5, loss=1.0), metric(5, loss=0.5)]) == [(5, 1, 0.5)]


def test_ranks_and_names_do_not_hide_each_other():
    """A step's value of one rank or metric says nothing about another's."""
    found = curve([metric(1, rank=0, loss=1.0), metric(1, 2, rank=1, loss=2.0), metric(1, 2, norm=3.0)])
    assert [(one.name, one.rank, one.value) for one in found] == [
        ("loss", 0, 1.0),
        ("loss", 1, 2.0),
        ("norm", 0, 3.0),
    ]


def test_steps_are_told_in_their_order_as_numbers():
    """Step 10 comes after step 9, whenever each was written."""
    assert [step for step, _, _ in losses([metric(step, loss=1.0) for step in (10, 9, 100, 1)])] == [
        1,
        9,
        10,
        100,
    ]


def test_what_is_no_number_is_no_point():
    """Text, truth values, lists, and events that are no metrics give nothing."""
    assert points(metric(1, a="text", b=True, c=[1], d=None, e={"f": 1.0})) == []
    assert points(metric(1, kind="state", loss=1.0)) == []


def test_a_whole_number_too_large_for_a_float_ends_nothing():
    """A script may log any integer; one beyond a float's range does not end `launch metrics`."""
    assert [one.value for one in points(metric(1, count=10**400, loss=1.0)) if one.name == "loss"] == [1.0]


def test_a_value_without_a_step_lies_on_the_time_axis():
    """Each of them is kept, after those with a step and in the order of time; JSON and CSV leave the step out."""
    events = [metric(None, loss=3.0), metric(None, 2, loss=2.0), metric(7, loss=1.0)]
    later = Event(version=1, kind="metric", attempt=1, rank=0, step=None, time=1.5, values={"loss": 4.0})
    found = curve([*events, later])
    assert [(one.step, one.value) for one in found] == [(7, 1.0), (None, 4.0), (None, 3.0), (None, 2.0)]
    assert record("r", found[1])["step"] is None
    (row,) = csv.DictReader(io.StringIO(table([("r", found[1])])))
    assert (row["step"], row["time"], row["value"]) == ("", "1.5", "4.0")


NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@pytest.mark.parametrize("word", NON_FINITE)
@pytest.mark.parametrize("is_text", [True, False], ids=["as text", "as a number"])
def test_a_non_finite_number_is_its_name_in_json_and_csv(word, is_text):
    """`nan`, `inf` and `-inf` are written alike in JSON lines and CSV, and are numbers in between."""
    (point,) = curve([metric(1, loss=word if is_text else NON_FINITE[word])])
    assert math.isnan(point.value) if word == "nan" else point.value == NON_FINITE[word]
    line = json.loads(json.dumps(record("r", point)), parse_constant=refuse)
    (row,) = csv.DictReader(io.StringIO(table([("r", point)])))
    assert (line["value"], row["value"]) == (word, word)


def test_json_and_csv_have_the_same_columns_in_the_same_order():
    """CSV has no version, kind and `rehearsed`: those are of JSON."""
    (point,) = curve([metric(3, 2, 1, loss=0.1)])
    line = record("0101-sft-aaaa", point)
    columns = ["run", "attempt", "rank", "step", "time", "name", "value"]
    assert list(line) == ["version", "kind", *columns, "rehearsed"]
    assert (
        table([("0101-sft-aaaa", point)])
        == "run,attempt,rank,step,time,name,value\n0101-sft-aaaa,2,1,3,7.5,loss,0.1\n"
    )


def test_a_name_with_commas_and_quotes_is_one_cell():
    """CSV quotes what a script calls its metrics."""
    (row,) = csv.DictReader(io.StringIO(table(("r", one) for one in curve([metric(1, **{'a,"b"': 1.0})]))))
    assert row["name"] == 'a,"b"'


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+x", "'+x"),
        ("-x", "'-x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("＝1", "'＝1"),  # noqa: RUF001
        (" =1", "' =1"),
        ("\t=1", "' =1"),
        ("\r=1", "' =1"),
        ("\x1b[31mred\u202e\x9b", " [31mred  "),
        ("-1.5", "-1.5"),
        ("-inf", "-inf"),
        ("a=b", "a=b"),
    ],
)
def test_a_name_in_csv_is_no_formula_and_no_escape(name, cell):
    """A spreadsheet shows it as text, a terminal obeys nothing in it. A number stays one."""
    (row,) = csv.DictReader(io.StringIO(table(("r", one) for one in curve([metric(1, **{name: -1.5})]))))
    assert (row["name"], row["value"]) == (cell, "-1.5")
