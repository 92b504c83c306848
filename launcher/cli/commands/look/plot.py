"""plot: draw the curves of a run, in the terminal and as a picture."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launcher.cli.options import HostOption, JsonFlag, RunWord
from launcher.cli.output.say import say

if TYPE_CHECKING:
    from launcher.metrics.curves import Point


def plot(
    run: RunWord = "last",
    host: HostOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw a run's loss in the terminal, and write a picture with loss, learning rate, gradient norm, throughput and cards.

    The picture's path is printed last; a pipe gets only the path. If the run continues another, the curves include that run.

    Examples:
        launch plot last
    """
    from launcher.cli.follow.fetch import fetch
    from launcher.cli.output.wrapping import terminal_width
    from launcher.metrics.ancestry import joined
    from launcher.metrics.host_figures import host_figures
    from launcher.metrics.picture import draw
    from launcher.runs.follow.picture_title import title_of
    from launcher.runs.follow.precision_report import known_precision

    local_copy = fetch(run, host)
    measured, title = (
        [point for _, point in joined(local_copy)],
        title_of(local_copy, known_precision(local_copy)),
    )
    png = draw(local_copy.run, measured, host_figures(local_copy), title)
    with local_copy.disk_errors(local_copy.picture):
        local_copy.files.write(local_copy.picture, png)
    if as_json:
        from launcher.cli.json_output.precision_shapes import PlotShown
        from launcher.cli.output.answer import answer

        answer(PlotShown(run=local_copy.run, path=str(local_copy.picture)))
        return
    if (width := terminal_width()) is not None:
        say(f"{local_copy.short}  {title}"[:width], *_curves(measured, width))
    say(str(local_copy.picture))


def _curves(measured: list[Point], width: int) -> list[str]:
    """Return the loss as a chart, and a line for each of the other panels."""
    import shutil

    from launcher.cli.output.chart import MAX_LINES, chart
    from launcher.cli.output.figures import value_text
    from launcher.metrics.panels import panels_of

    loss, *others = panels_of(measured)
    height = max(4, min(MAX_LINES, shutil.get_terminal_size().lines - 8 - len(others)))
    lines = chart(loss, width, height, is_ascii=not _can_print("\u28ff"))
    for panel in others:
        first, last = (value_text(panel.ys[at]) for at in (0, -1))
        lines.append(f"  {panel.label:<15}  {first} {_arrow()} {last}"[:width])
    return lines


def _arrow() -> str:
    return "→" if _can_print("→") else "->"


def _can_print(letters: str) -> bool:
    try:
        letters.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
