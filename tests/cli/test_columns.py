"""Text in columns, in terminals that are narrower than the text."""

import pytest
from rich.cells import cell_len

from launcher.base.text import MAX_CHARACTERS, printable, printables
from launcher.cli.output.columns import Column, lay_out, print_columns

COLUMNS = (
    Column("RUN"),
    Column("JOB", 8, drop=2),
    Column("STATE", 11),
    Column("STEP", drop=1, is_figure=True),
    Column("CARD", 9, drop=4),
    Column("", 16, drop=3),
)
LONG = "CUDA out of memory. Tried to allocate 2.00 GiB, of which 1.2 GiB is free " * 3
ROWS = [
    (
        "k3f9w2",
        "a-job-with-a-long-name",
        "resuming, attempt 2: agent-lost",
        "412/900",
        "2 x L40S 48 GB",
        LONG,
    ),
    ("w8q2zz", "日本語の名前です", "running", "9", "-", ""),
]


@pytest.mark.parametrize("width", [1, 10, 24, 40, 60, 80, 100, 120, 200, 300])
def test_each_row_is_one_line_that_fits(width):
    """At any width, in cells: a Chinese letter takes two."""
    lines = lay_out(COLUMNS, ROWS, width).lines
    assert len(lines) == 1 + len(ROWS)
    assert max(map(cell_len, lines)) <= width
    if width >= 40:
        assert [line.split()[0] for line in lines] == ["RUN", "k3f9w2", "w8q2zz"]
        assert [line.split()[0] for line in lines[1:]] == ["k3f9w2", "w8q2zz"]
        assert "running" in lines[2]


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (120, ["RUN", "JOB", "STATE", "STEP", "CARD"]),
        (60, ["RUN", "JOB", "STATE", "STEP"]),
        (40, ["RUN", "JOB", "STATE", "STEP"]),
        (29, ["RUN", "STATE", "STEP"]),
        (25, ["RUN", "STATE"]),
    ],
)
def test_columns_are_cut_first_and_then_left_out_in_their_order(width, titles):
    """An ellipsis says that something is missing. What identifies a row is never cut."""
    lines = lay_out(COLUMNS, ROWS, width).lines
    assert lines[0].split() == titles
    assert "…" in lines[1]
    assert lines[1].startswith("k3f9w2  ")


def test_the_width_is_used():
    """No cell of the terminal is wasted while something is cut."""
    for width in range(60, 300):
        assert cell_len(lay_out(COLUMNS, ROWS, width).lines[1]) >= width - 2, width


def test_without_a_width_nothing_is_cut():
    """As in a pipe, where other programs read it. Figures end below each other."""
    lines = lay_out(COLUMNS, ROWS).lines
    assert LONG.rstrip() in lines[1]
    assert cell_len(lines[1].partition("412/900")[0]) + 7 == cell_len(lines[2].partition(" 9 ")[0]) + 2


def test_a_pipe_gets_the_whole_text_even_where_columns_is_set(monkeypatch, capsys):
    """COLUMNS is the width of the terminal that started the pipe."""
    monkeypatch.setenv("COLUMNS", "40")
    print_columns(COLUMNS, ROWS)
    printed = capsys.readouterr().out
    assert LONG.rstrip() in printed
    assert "\x1b" not in printed


def test_a_table_without_rows_has_its_titles(capsys):
    """The widths of columns need no row."""
    print_columns(COLUMNS, [])
    assert capsys.readouterr().out.split() == ["RUN", "JOB", "STATE", "STEP", "CARD"]


REASONS = (Column("RUNG"), Column("PRECISION", 9), Column("WHY", 30, wraps=True))
PROSE = (
    "tensor cores reach 130 TFLOP/s; the adapters stay in fp32 so that the scaler can unscale their gradients"
)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_a_text_that_wraps_goes_on_below_itself_and_loses_no_word(width):
    """Below its own column; below the row where there is no room beside it."""
    head, first, *rest = lay_out(REASONS, [("1", "fp16 autocast", PROSE)], width).lines
    assert max(map(cell_len, (head, first, *rest))) <= width
    start = head.find("WHY")
    assert (start < 0) == (width < 45)
    words = [line[start:] if start > 0 else line for line in ([first, *rest] if start > 0 else rest)]
    assert " ".join(" ".join(words).split()) == PROSE
    assert all(line[:start].strip() == "" for line in rest if start > 0)
    assert lay_out(REASONS, [("1", "fp16 autocast", PROSE)]).lines[1].endswith(PROSE)


@pytest.mark.parametrize("odd", ["\x1b[31mred", "a\nb", "x" * (MAX_CHARACTERS + 1)])
def test_one_text_among_thousands_that_a_terminal_cannot_show_is_made_fit_alone(odd):
    """They are looked at all at once, which must not let one through."""
    texts = ["plain"] * 3000
    assert printables(texts) is texts
    assert printables([*texts, odd]) == [*texts, printable(odd)]
    assert printables([]) == []
