"""Metrics of real log formats: `logs/NAME/` has a log, where its format comes from, and what is to be read from it.

`expected.json` was compared with the numbers that the log was made of; a step is there only if the log says it.
"""

import json
import math
import random
import time
from pathlib import Path

import pytest

from launcher.agent.logs.log_scanner import LogScanner

LOGS = Path(__file__).parent / "logs"
NAMES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def value_of(written):
    return NAMES[written] if isinstance(written, str) else written


def read(*pieces):
    scanner = LogScanner()
    metrics = [metric for piece in pieces for metric in scanner.feed(piece)]
    return scanner, [*metrics, *scanner.finish()]


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir()))
def test_what_a_log_of_this_format_says(name):
    """Names, numbers and steps are those of the log, and nothing else is read; how the bytes arrive does not matter."""
    log = (LOGS / name / "log.txt").read_bytes()
    expected = json.loads((LOGS / name / "expected.json").read_text())
    scanner, metrics = read(log)
    wanted = [
        (step, {key: value_of(written) for key, written in values.items()})
        for step, values in expected["metrics"]
    ]
    assert repr([tuple(metric) for metric in metrics]) == repr(wanted)
    last = scanner.last_loss
    assert repr(None if last is None else last.value) == repr(
        None if expected["last_loss"] is None else float(value_of(expected["last_loss"]))
    )
    divergence = scanner.divergence
    assert (None if divergence is None else divergence.since) == expected["diverged_since"]
    pieces = [log[begin : begin + 7] for begin in range(0, len(log), 7)]
    assert repr(read(*pieces)[1]) == repr(metrics)


def mangled(randomness, lines):
    """Return a log made of pieces of real ones: cut, repeated, glued, with numbers and brackets that nobody prints."""
    strange = [
        b"9" * 400,
        b"-",
        b"1e999",
        b"{" * 300,
        b"[" * 300,
        b'"',
        b"'",
        b"\\",
        b"\xff",
        b"\x1b[",
        b"%|",
        b"nan",
        b"\r",
        b"\n",
        b" " * 200,
    ]
    for _ in range(400):
        line = randomness.choice(lines)
        begin, end = sorted(randomness.randrange(len(line) + 1) for _ in range(2))
        part = randomness.choice(
            [line, line[begin:], line[:end], line[begin:end] * randomness.randrange(1, 9)]
        )
        yield part + randomness.choice([b"\n", b"\r", b"", randomness.choice(strange)])


@pytest.mark.parametrize("seed", range(12))
def test_a_log_of_mangled_lines_costs_little_and_ends_nothing(seed):
    """Hostile input is only text: no error, no long search, and what is kept of it is bounded."""
    randomness = random.Random(seed)
    lines = [
        line for path in sorted(LOGS.glob("*/log.txt")) for line in path.read_bytes().splitlines() if line
    ]
    scanner = LogScanner()
    pieces = [*mangled(randomness, lines), b"\n"]
    began = time.process_time()
    for piece in pieces:
        for step, values in scanner.feed(piece):
            assert step is None or 0 <= step <= 2**53
            assert all(isinstance(value, float) for value in values.values())
    assert time.process_time() - began < 2.0
    kept = (scanner._axes, scanner._passes, scanner._counters)
    assert all(len(held) <= 1000 for held in kept)
    *_, last = scanner.feed(b"\n[x]\n" * 3 + b"{'eval_loss': 0.5}\n")
    assert last.values["eval_loss"] == 0.5


def test_every_log_says_where_its_format_comes_from():
    """At least forty formats, each with its project."""
    sources = [path.read_text() for path in LOGS.glob("*/source")]
    assert len(sources) == len(list(LOGS.iterdir())) >= 40
    assert all(len(source) > 40 for source in sources)
