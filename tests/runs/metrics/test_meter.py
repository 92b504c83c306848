"""Bytes that move are shown with their rate and what is left: a line now and then in a pipe, objects with figures for scripts."""

import json
import time

import pytest

from launcher.base.meter import Meter, Moved
from launcher.cli.follow.json_view import JsonView
from launcher.cli.follow.plain_view import PlainView
from launcher.cli.output.figures import transfer_text

MB = 1_000_000


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved: a list with its seconds."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def transfer(clock, stage, megabytes, seconds):
    """Move so many megabytes of a file in so many seconds, one by one."""
    meter = Meter(megabytes * MB, stage.moved)
    for _ in range(megabytes):
        clock[0] += seconds / megabytes
        meter.advance(MB, "data/train.bin")


def test_a_transfer_is_shown_with_its_rate_and_the_time_that_is_left():
    """One line says how much of what has moved, how fast, how long it will take, and the file it is at."""
    text = transfer_text(Moved(1_200 * MB, 1_500 * MB, 150 * MB, "data/train.bin"))
    assert text == "1.2 of 1.5 GB  150.0 MB/s  eta 0:02   data/train.bin"
    assert transfer_text(Moved(5_000, 1_500 * MB, 1000, "x", "reading")).startswith(
        "reading 5.0 kB of 1.5 GB"
    )


def test_a_transfer_that_stands_still_has_no_time_left_to_show():
    """Nothing is divided by a rate of zero, and a wait of years is not spelt out."""
    assert "eta" not in transfer_text(Moved(0, MB, 0.0, "x"))
    assert transfer_text(Moved(24, 0, 10.0, "on k", "checking")) == "checking 24 bytes  10 bytes/s   on k"
    assert "eta 100:00:00" in transfer_text(Moved(0, 10**15, 1.0, "x"))


def test_in_a_pipe_there_is_a_line_at_least_every_five_seconds_and_not_one_for_each_megabyte(clock, capsys):
    """600 MB in a minute: between 12 and 30 lines, each further than the last."""
    with PlainView().stage("ship") as stage:
        transfer(clock, stage, 600, seconds=60)
    lines = [line for line in capsys.readouterr().err.splitlines() if "of 600.0 MB" in line]
    assert 12 <= len(lines) <= 30
    figures = [float(line.split("ship: ")[1].split()[0]) for line in lines]
    assert figures == sorted(figures)
    assert figures[0] <= 50
    assert "10.0 MB/s" in lines[-1]


def test_a_short_transfer_prints_no_progress_in_a_pipe(clock, capsys):
    """The line of the stage says it all."""
    with PlainView().stage("ship") as stage:
        transfer(clock, stage, 100, seconds=1)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_script_gets_the_figures_as_numbers(clock, capsys):
    """Objects with bytes and seconds, not only text."""
    with JsonView().stage("ship") as stage:
        transfer(clock, stage, 100, seconds=20)
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shown = [found for found in objects if found["kind"] == "progress"]
    assert len(shown) >= 4
    assert [found["done"] for found in shown] == sorted(found["done"] for found in shown)
    assert {found["total"] for found in shown} == {100 * MB}
    assert shown[-1]["bytes_per_s"] == pytest.approx(5 * MB, rel=0.1)
    assert shown[-1]["eta_s"] == pytest.approx((100 * MB - shown[-1]["done"]) / (5 * MB), rel=0.2)
    assert shown[-1]["file"] == "data/train.bin"
