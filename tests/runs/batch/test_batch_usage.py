"""What a batch has taken: the time of all its runs, also of tries that failed, times their GPUs; only the totals say so."""

import json

import pytest

from launcher.batch.batch_queue import NewItem, make_queue
from launcher.batch.batch_status import rows_of
from launcher.batch.batch_usage import Usage, Used, total
from launcher.batch.input.batch_definition import Rules
from launcher.batch.queued_item import ItemState
from launcher.cli.commands.batch.batch_table import cells, shape, spent
from launcher.copy.runs_folder import runs_folder

FIRST, AGAIN, OTHER = "261126-i1-aaaaaa", "261126-i1-bbbbbb", "261126-i2-cccccc"


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A batch of three items: the first one failed once, the third has not begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAUNCH_RUNS", raising=False)
    entries = [NewItem(name, "{}", ("lab",), {}) for name in ("i1", "i2", "i3")]
    with make_queue("sweep", Rules(), entries) as made:
        for number, run, outcome in ((1, FIRST, "failed"), (1, AGAIN, "succeeded"), (2, OTHER, "succeeded")):
            item = made.item(number)
            if item.state == ItemState.ENDED:
                item = made.step(item, ItemState.QUEUED)
            item = made.step(item, ItemState.RESERVED, run=run, host="lab")
            item = made.step(item, ItemState.CONFIRMED)
            made.step(item, ItemState.ENDED, outcome=outcome)
        yield made


def write(run, seconds, cards, state="succeeded"):
    """Put a run's record here: it took so long, with so many GPUs."""
    attempt = runs_folder() / run / "0001"
    attempt.mkdir(parents=True)
    (attempt / "attempt.json").write_text(json.dumps({"kind": "attempt", "time": 1000.0}))
    (attempt / "state.json").write_text(json.dumps({"state": state, "time": 1000.0 + seconds}))
    (attempt.parent / "plan.json").write_text(json.dumps({"job": "t", "allocation": {"cards": cards}}))


def test_all_tries_of_an_item_count_and_a_run_on_two_gpus_counts_twice(queue):
    """In the line of totals, and for each item."""
    write(FIRST, 600.0, 2, "failed")
    write(AGAIN, 3600.0, 2)
    write(OTHER, 1800.0, 1)
    used = Usage(queue).now()
    assert used == {1: Used(4200.0, 8400.0, tries=2), 2: Used(1800.0, 1800.0, tries=1)}
    assert [cells(row)[3] for row in rows_of(queue.items(), used=used)] == [
        "succeeded, try 2",
        "succeeded",
        "queued",
    ]
    assert spent(queue, used) == "; 1 h 40 m of runs, 2.83 GPU hours"
    shown = [shape(row) for row in rows_of(queue.items(), used=used)]
    assert [one.hours for one in shown] == [4200 / 3600, 0.5, None]
    assert [one.gpu_hours for one in shown] == [8400 / 3600, 0.5, None]


def test_a_cpu_has_no_gpu_hours(queue):
    """A batch of which nothing is known here says neither."""
    assert spent(queue, Usage(queue).now()) == ""
    write(OTHER, 42.0, 0)
    assert spent(queue, Usage(queue).now()) == "; 0:42 of runs"


def test_what_has_ended_is_not_read_again(queue):
    """A table is drawn every second; what goes on is read each time."""
    write(FIRST, 10.0, 1, "failed")
    write(AGAIN, 20.0, 1)
    usage = Usage(queue)
    assert total(usage.now()).run_s == 30.0
    for path in (runs_folder() / AGAIN).rglob("*.json"):
        path.unlink()
    write(OTHER, 5.0, 1)
    assert total(usage.now()).run_s == 35.0
