"""results.csv: a column for each thing that is known of an item, and no cell that a spreadsheet would run."""

import csv
import json

import pytest

from launcher.batch.batch_queue import NewItem, make_queue
from launcher.batch.batch_results import write_results
from launcher.batch.input.batch_definition import Rules
from launcher.copy.request import Request


def rows_of(tmp_path, monkeypatch, settings, **values):
    """The header, and the row of an item with these values of the matrix, which has not begun."""
    monkeypatch.chdir(tmp_path)
    request = json.dumps(Request(job="sft", settings=settings)._asdict())
    with make_queue("sweep", Rules(), [NewItem("i1", request, ("local",), values)]) as queue:
        table = write_results(queue).table
    with table.open(newline="") as file:
        return [*csv.reader(file)]


def test_each_column_has_a_name_of_its_own(tmp_path, monkeypatch):
    """A value of the matrix that is called as what became of the item is `given`."""
    header, row = rows_of(tmp_path, monkeypatch, ["attempts=2"], host="lab", state="warm", lr=3)
    assert len({*header}) == len(header)
    shown = dict(zip(header, row, strict=True))
    assert (shown["state"], shown["host"], shown["attempts"]) == ("queued", "", "")
    given = [shown[key] for key in ("given state", "given host", "given attempts", "lr")]
    assert given == ["warm", "lab", "2", "3"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [("=1+1", "'=1+1"), ("@a", "'@a"), ("-x", "'-x"), ("-1e-4", "-1e-4"), ("+3", "+3"), ("a=b", "a=b")],
)
def test_text_that_would_be_a_formula_is_quoted_and_numbers_are_not(tmp_path, monkeypatch, value, cell):
    """As the docs say."""
    header, row = rows_of(tmp_path, monkeypatch, [], x=value)
    assert row[header.index("x")] == cell
