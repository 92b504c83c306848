"""An agent writes a path whose bytes are not UTF-8 as a lone surrogate, which no encoder of a client takes."""

import json

from launcher.base.json_file import parse_object
from launcher.copy import ended_rows
from launcher.transport.client.host_client import _summary

LINE = json.dumps(
    {
        "run": "0101-a-aaaa",
        "state": "failed",
        "evidence": {
            "own_checkpoint": {"path": "out\udcff/checkpoint-5"},
            "words": ["\ud83d\ude00", "\\ud800 as text"],
        },
    }
).encode()


def test_a_summary_with_one_can_be_written_again():
    """`launch ps` keeps the rows of ended runs in a file."""
    summary = _summary(LINE)
    assert summary is not None
    row = ended_rows.EndedRow(1, 1, "runs", 1, 1.0, "lab", summary)
    written = ended_rows._ROW.dump_json(row)
    assert b"checkpoint-5" in written


def test_only_the_lone_ones_are_replaced():
    evidence = parse_object(LINE)["evidence"]
    assert evidence["own_checkpoint"]["path"] == "out?/checkpoint-5"
    assert evidence["words"] == ["\U0001f600", "\\ud800 as text"]
