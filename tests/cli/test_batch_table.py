"""A batch's table and its JSON: what they say of a loss that is not finite, what it takes to print them, and its exit code."""

import json
import re
import subprocess
import sys

import pytest

from launcher.batch.batch_queue import NewItem, make_queue
from launcher.batch.batch_status import ItemRow
from launcher.batch.batch_stop import Stopped
from launcher.batch.batch_usage import Used
from launcher.batch.batch_worker import BatchOutcome
from launcher.batch.input.batch_definition import Rules
from launcher.batch.item_view import ItemView
from launcher.batch.queued_item import Item, ItemState
from launcher.cli.commands.batch.batch_table import cells, print_stopped, shape
from launcher.cli.commands.batch.batch_work import exit_code
from launcher.values.record import Event


@pytest.mark.parametrize("loss", [float("nan"), "nan"])
def test_a_loss_of_nan_is_shown_as_that(loss):
    """From a run that is followed, where it is a number, and from the record of one, where it is a word."""
    row = ItemRow("i1", None, "lab", "running", None, {}, Used(), 3, 5, loss)
    assert cells(row)[5] == "nan"
    assert shape(row).model_dump(mode="json")["loss"] == "nan"


def test_a_followed_item_keeps_no_finite_loss_after_nan():
    """The last value counts."""
    view = ItemView(lambda _text: None)
    for step, loss in enumerate((1.5, "nan"), start=1):
        view._read_metric(Event(version=1, kind="metric", step=step, time=0.0, values={"loss": loss}))
    assert (view.step, str(view.loss)) == (2, "nan")


STATUS = """
import json, sqlite3, sys
queries, connect = [], sqlite3.connect
def traced(*words, **more):
    made = connect(*words, **more)
    made.set_trace_callback(queries.append)
    return made
sqlite3.connect = traced
sys.argv = ["launch", "batch", "status"]
from launcher.cli import main
try:
    main()
finally:
    loaded = sorted(name for name in sys.modules if name.startswith("launcher."))
    print(json.dumps({"queries": queries, "loaded": loaded}), file=sys.stderr)
"""


def test_two_thousand_queued_items_are_shown_by_one_query_and_without_what_reaches_hosts(
    tmp_path, monkeypatch
):
    """So that it is quick: neither the desks of hosts nor the values of jobs and runs are loaded to print names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCH_RUNS", raising=False)
    entries = [NewItem(f"train-{number:04}", "{}", ("A", "B"), {"seed": number}) for number in range(2000)]
    make_queue("sweep", Rules(), entries).close()
    done = subprocess.run([sys.executable, "-c", STATUS], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1 + 2000 + 3
    found = json.loads(done.stderr)
    assert len([query for query in found["queries"] if " FROM item" in query]) == 1
    of_tables = [query for query in found["queries"] if re.search(" FROM (batch|item|run)( |$)", query)]
    assert len(of_tables) <= 4, "the version, the items, their runs, what it may cost"
    assert len(found["queries"]) <= 12, "and what is checked of any file before it is read"
    assert "launcher.cli.commands.batch.batch_table" in found["loaded"]
    heavy = (
        "launcher.transport",
        "launcher.backends",
        "launcher.planning",
        "launcher.copy.local_copy",
        "launcher.values.record",
    )
    assert not [name for name in found["loaded"] if name.startswith(heavy)]


def test_stop_counts_what_its_table_shows(tmp_path, monkeypatch, capsys):
    """Also while the process that runs the batch is still to put the end of the runs on record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCH_RUNS", raising=False)
    with make_queue(
        "sweep", Rules(), [NewItem(f"i{number}", "{}", ("A",), {}) for number in (1, 2)]
    ) as queue:
        item = queue.items()[0]
        for state in (ItemState.RESERVED, ItemState.CONFIRMED):
            item = queue.step(item, state)
        assert print_stopped(queue, [Stopped(item, "stopped")], as_json=False) == 0
    assert "sweep: 2 items: 1 stopped, 1 queued" in capsys.readouterr().out


def _item(number, state, outcome=None):
    return Item(number, f"i{number}", "{}", ("A",), {}, state, None, "A", outcome, None, (), 0.0)


@pytest.mark.parametrize(
    ("outcomes", "how", "code"),
    [
        (["succeeded"], BatchOutcome.OVER, 0),
        (["refused"], BatchOutcome.OVER, 3),
        (["stopped"], BatchOutcome.OVER, 1),
        (["succeeded", "refused"], BatchOutcome.OVER, 1),
        (["succeeded", "dropped"], BatchOutcome.OVER, 1),
        ([None], BatchOutcome.OVER, 5),
        (["failed", None], BatchOutcome.OVER, 5),
        (["failed", None], BatchOutcome.SILENT, 4),
        (["failed", None], BatchOutcome.LEFT, 0),
    ],
)
def test_the_exit_code_says_how_the_batch_ended(outcomes, how, code):
    """As docs/batches.md lists them. None is an item whose run is there and waits."""
    items = [
        _item(number, ItemState.ENDED if outcome else ItemState.CONFIRMED, outcome)
        for number, outcome in enumerate(outcomes)
    ]
    assert exit_code(items, how) == code
