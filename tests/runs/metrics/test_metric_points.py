"""Metrics that are read many lines at once are those that are read one event after the other."""

import json

import pytest

from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import parse_event, parse_events
from launcher.metrics.curves import in_order, points
from launcher.metrics.metric_points import metric_points

RUN = "261126-toy-aaaaaa"
USUAL = {
    "rank": 0,
    "step": 3,
    "time": 7.5,
    "kind": "metric",
    "values": {"loss": 2.5},
    "version": 1,
    "attempt": 1,
}
LINES = {
    "usual": [USUAL, {**USUAL, "step": 4, "values": {"b": 1.0, "a": -0.0}}],
    "no attempt, rank or step": [
        {key: USUAL[key] for key in ("time", "kind", "values", "version")},
        {**USUAL, "step": None},
    ],
    "values of other types": [
        {
            **USUAL,
            "values": {"a": 1, "b": True, "c": "nan", "d": "-inf", "e": None, "f": [1.0], "g": "metric"},
        },
        {**USUAL, "values": {"big": 10**400, "loss": 1.0}},
        {**USUAL, "values": {}},
    ],
    "fields of other types": [
        {**USUAL, field: value}
        for field in USUAL
        for value in (1.5, 2**60, -1, True, None, "metric", "7", [], {"loss": 1.0}, 1e300)
    ],
    "of another kind": [
        {**USUAL, "kind": "host"},
        {**USUAL, "kind": "state", "values": {"state": "running", "metric": 1.0}},
        {**USUAL, "source": "log"},
        {**USUAL, "source": 7},
    ],
    "not objects": [["metric"], "metric", 7, None, [USUAL]],
    "turned round": [{**USUAL, "step": step, "attempt": attempt} for attempt in (2, 1) for step in (9, 3, 5)],
}
TORN = [
    b'{"kind":"metric","step":1\n',
    b'[{"kind":"metric"}\n',
    b'"metric"}]\n',
    b'{"version":1,"kind":"metric","time":7.5,"values":{"loss":NaN}}\n',
    b'{"version":1,"kind":"metric","time":7.5,"values":{"loss":\xff}}\n',
    b'"metric",7\n',
]


def read(tmp_path, data):
    folder = tmp_path / RUN / "0001"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(data)
    return LocalCopy(RUN, tmp_path)


def told(found):
    return [tuple(map(repr, point)) for point in in_order(found)]


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("torn", [b"", *TORN])
def test_lines_read_at_once_give_the_points_of_their_events(name, torn, tmp_path):
    """Of every form that a line may have, and beside a line that nobody can read, or an unfinished one."""
    lines = [f"{json.dumps(line)}\n".encode() for line in LINES[name]]
    local_copy = read(tmp_path, b"".join([*lines, torn, *lines, torn.strip()]))
    one_by_one = [point for event in local_copy.record.events() for point in points(event)]
    assert told(metric_points(local_copy)) == told(one_by_one)


@pytest.mark.parametrize("torn", [b"", *TORN])
def test_events_made_at_once_are_those_made_one_after_the_other(torn):
    """Of all forms together, with one that nobody can read among them."""
    lines = [json.dumps(line).encode() for name in LINES for line in LINES[name]]
    for some in ([*lines, torn, *lines], [torn], [line for line in lines if parse_event(line)], []):
        expected = [event for event in map(parse_event, some) if event is not None]
        assert list(map(repr, parse_events(some))) == list(map(repr, expected))


def test_a_usual_line_is_read_at_all(tmp_path):
    """Else the others would say nothing."""
    found = [*metric_points(read(tmp_path, f"{json.dumps(USUAL)}\n".encode()))]
    assert [(point.step, point.name, point.value) for point in found] == [(3, "loss", 2.5)]
