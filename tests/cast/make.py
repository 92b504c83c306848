"""Run a session at a real terminal, and draw it as a picture that plays: `make cast` writes docs/first-five-minutes.svg.

What each command left on the screen is shown line by line; waits are left out, and what was redrawn meanwhile.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from rich.console import Console  # noqa: E402 - the testbed is found only now
from rich.text import Text  # noqa: E402
from testbed.screen import Screen  # noqa: E402

PICTURE = REPOSITORY / "docs" / "first-five-minutes.svg"
COLUMNS, ROWS = 100, 120
LINE_S, TYPING_S = 0.08, 1.5
"""How long a line, and a command, stand before the next one appears."""
TRAIN = """
import math, time
for step in range(1, 41):
    time.sleep(0.1)
    loss = 2.4 * math.exp(-step / 15) + 0.3
    print(f"step {step}/40 loss {loss:.3f} lr {2e-4 * (1 - step / 40):.2e}", flush=True)
"""
SESSION = (
    "launch init --host local --no-smoke",
    "launch -q -- python train.py",
    "launch ps",
    "launch plot last",
    "launch explain --profile titan_rtx --set model=meta-llama/Llama-3.2-1B",
    "launch train.py",
)
PAGE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
{styles}
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; \
line-height: {line_height}px; }}
@keyframes appear {{ from {{ visibility: hidden }} to {{ visibility: visible }} }}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""


def lines_of(command: str, folder: Path, env: dict[str, str]) -> Iterator[Text]:
    """Run a command on a pty, and yield what it left on the screen."""
    yield Text.assemble(("$ ", "dim"), (command, "bold"))
    answers = "y\n" if " init " in command else ""
    with Screen(["sh", "-c", command], env, folder, COLUMNS, ROWS, echoes=True) as screen:
        if answers:
            screen.until(lambda lines: lines[-1].startswith("continue?"))
            screen.type(answers)
        count = len(screen.to_the_end())
        for number in range(count):
            cells = [screen.emulator.buffer[number][column] for column in range(COLUMNS)]
            line = Text()
            for cell in cells:
                colour = None if cell.fg == "default" else cell.fg if cell.fg.isalpha() else f"#{cell.fg}"
                line.append(cell.data, style=" ".join(filter(None, ["bold" if cell.bold else "", colour])))
            line.rstrip()
            yield line
    yield Text()


def drawn(lines: list[Text]) -> str:
    """Return the lines as a picture in which each appears after the one before."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    picture = console.export_svg(title="launch", code_format=PAGE, unique_id="cast")
    at_s, starts = 0.0, []
    for line in lines:
        starts.append(at_s)
        at_s += TYPING_S if line.plain.startswith("$ ") else LINE_S

    def play(found: re.Match[str]) -> str:
        return f'{found[0]} style="animation: appear 1ms {starts[int(found[1])]:.2f}s both"'

    return re.sub(r'clip-path="url\(#cast-line-([0-9]+)\)"', play, picture)


def main() -> None:
    """Record the session in a home of its own, and write the picture."""
    with tempfile.TemporaryDirectory(prefix="cast-") as home:
        folder = Path(home, "project")
        folder.mkdir()
        (folder / "train.py").write_text(TRAIN)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {"HOME": home, "PATH": path, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        lines = [line for command in SESSION for line in lines_of(command, folder, env)]
    PICTURE.write_text(drawn(lines).replace(home, "/home/me"))
    print(f"{PICTURE.relative_to(REPOSITORY)}: {len(lines)} lines")


if __name__ == "__main__":
    main()
