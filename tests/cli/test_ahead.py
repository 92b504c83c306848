"""A run with a long history: where it is now is shown first, and its history is read under the bar."""

import io
from types import SimpleNamespace

from rich.console import Console

from launcher.cli.follow.plain_view import PlainView
from launcher.cli.follow.terminal_view import TerminalView
from launcher.copy.local_copy import LocalCopy
from launcher.copy.record_sync import News
from launcher.runs.resume.recovering import RecoveryOutcome, show_and_recover
from launcher.values.record import Event, PlanSummary, RunState, Summary

RUN = "261126-sft-w8q2zz"
NOW = Summary(run=RUN, state="running", attempt=1, step=900_000, steps=1_000_000, loss=0.25)


def metric(step, loss):
    return Event(
        version=1, kind="metric", attempt=1, rank=0, step=step, time=1e9 + step, values={"loss": loss}
    )


def news(*events, is_full):
    return News(RunState(state="running", attempt=1), list(events), [], is_all=False, is_full=is_full)


def drawn(view):
    """Return what is below the lines that stay."""
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(view._below())
    return capture.get()


def test_the_bar_shows_where_a_run_is_while_its_history_is_read():
    """It does not begin at step 1 again; once all has been read it goes on with what comes."""
    view = TerminalView(Console(file=io.StringIO(), width=120, force_terminal=True))
    try:
        view.ahead(NOW, PlanSummary())
        assert "900000/1000000" in drawn(view)
        view.begin(RUN, PlanSummary(), [metric(1, 2.0), metric(2, 1.9)])
        view.news(news(metric(3, 1.8), is_full=True))
        assert "900000/1000000  loss 0.25" in drawn(view)
        view.news(news(metric(900_001, 0.125), is_full=False))
        assert "900001/1000000  loss 0.125" in drawn(view)
        view.news(news(metric(500, 0.5), is_full=False))
        assert "500/1000000  loss 0.5" in drawn(view)
    finally:
        view.close()


def test_the_history_of_another_run_is_not_held_back():
    """A view may show several runs, one after the other."""
    view = TerminalView(Console(file=io.StringIO(), width=120, force_terminal=True))
    try:
        view.ahead(NOW, PlanSummary())
        view.begin("261126-sft-aaaaaa", PlanSummary(), [metric(2, 1.5)])
        assert "  2  loss 1.5" in drawn(view)
    finally:
        view.close()


def test_attach_shows_a_live_run_before_its_history_is_asked_for(tmp_path):
    """Its summary is one small answer."""
    asked = []

    def summaries(*runs):
        asked.append("summary")
        return [NOW]

    desk = SimpleNamespace(
        host="lab", runs=SimpleNamespace(summaries=summaries, read=lambda *_: asked.append("history"))
    )
    view = SimpleNamespace(ahead=lambda summary, _plan: asked.append(f"shown at {summary.step}"))
    assert show_and_recover(desk, LocalCopy(RUN, tmp_path), view) == RecoveryOutcome.NOTHING_TO_DO
    assert asked == ["summary", "shown at 900000"]


def test_without_a_bar_each_line_has_its_own_step(capsys):
    """In a pipe there is nothing to hold: the lines of the history come first."""
    view = PlainView()
    view.ahead(NOW, PlanSummary())
    view.begin(RUN, PlanSummary(steps=1_000_000), [])
    view.news(news(metric(1, 2.0), metric(2, 1.5), is_full=True))
    view.news(news(metric(900_001, 0.125), is_full=False))
    shown = [line.split()[1:4] for line in capsys.readouterr().err.splitlines()]
    assert shown == [
        ["1/1000000", "loss", "2"],
        ["2/1000000", "loss", "1.5"],
        ["900001/1000000", "loss", "0.125"],
    ]
