"""What is written to standard output is whole: with PYTHONUNBUFFERED, and records that are made many at once."""

import json
import os
import subprocess
import sys

from launcher.cli.follow.json_view import JsonView
from launcher.copy.printed_lines import parse_events
from launcher.copy.record_sync import News
from launcher.values.record import PlanSummary, RunState

INTERRUPTED = """
import signal, sys
from launcher.cli.output import streams
streams.prepare()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
for _ in range(40):
    sys.stdout.write("x" * 999_999 + "\\n")
sys.stdout.flush()
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_signals_do_not_cut_what_an_unbuffered_process_writes():
    """A pipe that is full lets a write wait, and a signal ends it early."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], env=env, capture_output=True, check=True)
    assert len(done.stdout) == 40_000_000
    assert done.stdout.count(b"\n") == 40


def test_metrics_of_one_answer_are_one_record_a_line(capsys):
    """Whatever their names are."""
    names = ["loss", '},{"version":', "a\nb", "ü"]
    events = parse_events(
        [
            json.dumps(
                {
                    "version": 1,
                    "kind": "metric",
                    "time": 1.5,
                    "step": step,
                    "values": dict.fromkeys(names, 0.5),
                }
            ).encode()
            for step in (1, 2)
        ]
    )
    view = JsonView()
    view.begin("261126-train-abcdef", PlanSummary(), [])
    view.news(News(RunState(state="running"), events, [], is_all=True))
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["step"], one["name"]) for one in records] == [
        (step, name) for step in (1, 2) for name in names
    ]
    assert {(one["kind"], one["run"], one["value"]) for one in records} == {
        ("metric", "261126-train-abcdef", 0.5)
    }
