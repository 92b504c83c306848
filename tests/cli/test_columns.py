"""Text in columns, in terminals that are narrower than the text."""

import pytest

from launcher.cli.columns import print_columns


@pytest.mark.parametrize("columns", ["200", "80", "40", "1"])
def test_a_table_is_printed_in_any_terminal(monkeypatch, capsys, columns):
    """An empty last column has no width, in which nothing can be wrapped."""
    monkeypatch.setenv("COLUMNS", columns)
    rows = [("k3f9w2", "resuming: agent-lost, and words that make the row too long for a terminal", "-", "")]
    print_columns(("RUN", "STATE", "STEP", ""), rows, whole=(0, 2))
    printed = capsys.readouterr().out
    assert printed.split()[:4] == ["RUN", "STATE", "STEP", "k3f9w2"]
    assert "res" in printed
