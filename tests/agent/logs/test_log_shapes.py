"""The log reader reads the form of a line once for all lines of its shape, and finds what reading each line finds."""

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.agent.logs.log_bars import bar_form
from launcher.agent.logs.log_forms import line_form
from launcher.agent.logs.log_scanner import LogScanner
from launcher.agent.logs.log_shapes import MAX_CHARS, MAX_SHAPES, Shapes

LOGS = {path.parent.name: path.read_bytes() for path in (Path(__file__).parent / "logs").glob("*/log.txt")}
LINES = sorted({line for log in LOGS.values() for line in log.splitlines(keepends=True)})


class EachLine(Shapes):
    """Reads the form of every line anew."""

    def form(self, text):
        """Return the form of a line."""
        return self._read(text)


class Counted(Shapes):
    """Counts how many forms are read."""

    def __init__(self, read):
        self.reads = 0
        self._uncounted = read
        super().__init__(self._count)

    def _count(self, text):
        self.reads += 1
        return self._uncounted(text)


def scanner_with(kind):
    scanner = LogScanner()
    scanner._lines, scanner._bars = kind(line_form), kind(bar_form)
    return scanner


def found(scanner, log):
    metrics = [*scanner.feed(log), *scanner.finish()]
    return repr((metrics, scanner.last_loss, scanner.divergence))


@pytest.mark.parametrize("name", sorted(LOGS))
def test_a_log_says_the_same_by_shapes_and_line_by_line(name):
    """By the third time every line of the log is read by its shape."""
    log = LOGS[name] * 3
    assert found(scanner_with(Shapes), log) == found(scanner_with(EachLine), log)


PARTS = "9|0|.0|1e999|e-05|nan|inf|top 5 |acc@5: |, global_step=7|٣|\x1b[31m|%\x7f|{|}|'|:|=| |\r|\t|-|val |step 10.0 |é"


@st.composite
def changed_lines(draw):
    """Lines of real logs, several times, each time with other digits, and some with parts that do not belong there."""
    base = draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=8))
    randomness = random.Random(draw(st.integers(0, 2**32)))
    parts = [part.replace("\x7f", "|").encode() for part in PARTS.split("|")]
    changed = []
    for _ in range(len(base)):
        place, part = randomness.randrange(60), randomness.choice(parts)
        changed.append([place, part if randomness.random() < 0.3 else b""])
    log = b""
    for _ in range(4):
        for line, (place, part) in zip(base, changed, strict=True):
            digits = bytes(randomness.choice(b"0123456789") if chr(one).isdigit() else one for one in line)
            one = randomness.choice([line, digits])
            log += one[:place] + part + one[place:]
    return log


@given(changed_lines())
def test_any_lines_say_the_same_by_shapes_and_line_by_line(log):
    """Digits decide nothing that the shape does not have."""
    assert found(scanner_with(Shapes), log) == found(scanner_with(EachLine), log)


@pytest.mark.parametrize(
    "line",
    [
        "iter %05d: loss 2.%04d, time 101.50ms\n",
        "{'loss': 2.%05d, 'grad_norm': 0.%04d, 'epoch': 0.25}\n",
        '{"step": %05d, "loss": 2.%04d, "lr": 1.5e-05}\n',
        "[2026-11-22 10:00:00,%05d] INFO - Epoch: [3][%04d/5000] Loss 2.3 (2.4) Acc@1 50.0 (51.0)\n",
        "\r 33%%|###3      | %05d/90000 [00:10<00:20,  9.9it/s, loss=2.%04d]",
    ],
    ids=["iter", "dict", "json", "epochs", "bar"],
)
def test_a_line_of_a_known_shape_is_not_read_again(line):
    """2,000 lines cost three readings: of the first line, and twice of their shape."""
    scanner = scanner_with(Counted)
    log = "".join(line % (number, number) for number in range(2000))
    metrics = [*scanner.feed(log.encode()), *scanner.finish()]
    assert len(metrics) >= 1998
    assert scanner._lines.reads + scanner._bars.reads == 3


def test_a_bar_is_one_shape_however_far_it_is_drawn():
    """What is drawn between the strokes has as many states as columns."""
    scanner = scanner_with(Counted)
    for number in range(1000, 2000):
        drawn = ("#" * (number % 41)).ljust(40)
        scanner.feed(f"\r 50%|{drawn}| {number}/4000 [00:10<00:20,  9.9it/s, loss=2.5]".encode())
    assert scanner._bars.reads == 3


def test_a_number_in_a_name_belongs_to_the_name():
    """Lines of one shape may have different names."""
    lines = [
        "{'top 1': 0.5, 'eval_loss': 1.0}",
        "{'top 5': 0.5, 'eval_loss': 1.0}",
        "step 7: loss 1.0, acc1 0.5",
        "step 8: loss 1.0, acc5 0.6",
    ]
    scanner = scanner_with(Shapes)
    metrics = scanner.feed("\n".join([*lines * 4, ""]).encode())
    assert [list(values) for _, values in metrics] == [
        ["top 1", "eval_loss"],
        ["top 5", "eval_loss"],
        ["loss", "acc1"],
        ["loss", "acc5"],
    ] * 4


def test_what_is_kept_of_a_hostile_log_is_bounded():
    """A shape for each line, and long lines, fill no memory."""
    scanner = scanner_with(Shapes)
    words = itertools.product("abcdefghij", repeat=4)
    for word in itertools.islice(words, 3 * MAX_SHAPES):
        scanner.feed(b"step 1: loss 2.5 %s\n" % "".join(word).encode() * 2)
    scanner.feed(b"loss: 1.5 %s\n" % (b"x" * MAX_CHARS) * 3)
    for held in (scanner._lines._words, scanner._lines._forms):
        assert len(held) == MAX_SHAPES
        assert all(len(key) <= MAX_CHARS for key in held)
