"""The problems of `launch check` and the explanation of a rule, as text."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from launcher.base.text import files_text, printable
from launcher.check.file_report import Finding
from launcher.check.rule import Rule
from launcher.cli.output import streams
from launcher.cli.output.live_region import ACCENT
from launcher.cli.output.say import say
from launcher.cli.output.wrapping import terminal_width, wrapped_lines

_FIX = "[--fix]"
_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but tab, line feed, form feed and carriage return."""


def shown(path: Path) -> str:
    """Return a path as people type it: relative to the current folder, if it lies there."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)


def show_findings(findings: Sequence[Finding]) -> None:
    """Print problems: a line with the place, and one with the mend."""
    width = terminal_width()
    lines: list[str] = []
    for one in findings:
        head, code = _head(one)
        lines += wrapped_lines([f"{head} {code}{one.message}"], width, 2)
        if one.mend:
            lines += wrapped_lines([f"  mend  {one.mend}{f'  {_FIX}' if one.changes else ''}"], width, 8)
    if not lines:
        return
    if streams.may_have_colours():
        _print_coloured(lines, {_head(one) for one in findings})
    else:
        say(*lines)


def _head(finding: Finding) -> tuple[str, str]:
    """Return the place of a problem, and its code with a blank, if it has one."""
    place = printable(f"{shown(finding.path)}:{finding.region.start_text}")
    return place, f"{finding.code} " if finding.code else ""


def _print_coloured(lines: Iterable[str], heads: set[tuple[str, str]]) -> None:
    from rich.text import Text

    console = streams.console()
    codes = {code.strip() for _, code in heads if code}
    places = {place for place, _ in heads}
    for line in lines:
        text = Text(line)
        place = next((one for one in _beginnings(line) if one in places), "")
        text.stylize("bold", 0, len(place))
        code = line[len(place) :].split(maxsplit=1)[:1]
        if place and code and code[0] in codes:
            text.stylize(ACCENT, len(place) + 1, len(place) + 1 + len(code[0]))
        if line.endswith(_FIX):
            text.stylize("dim", len(line) - len(_FIX))
        console.print(text, soft_wrap=True)


def _beginnings(line: str) -> Iterator[str]:
    """Yield the beginnings of a line up to each blank, the longest last. A path may have blanks."""
    place = line.find(" ")
    while place > 0:
        yield line[:place]
        place = line.find(" ", place + 1)


def summary(findings: Sequence[Finding], files: int, command: str) -> str:
    """Return the last line: the number of problems, and the command that mends some, if one is given."""
    if not findings:
        return f"{files_text(files)}: no problems"
    count = len(findings)
    problems = "1 problem" if count == 1 else f"{count:,} problems"
    hit = len({one.path for one in findings})
    mended = sum(bool(one.changes) for one in findings)
    more = f"; {mended:,} can be mended   {command}" if mended and command else ""
    return f"{problems} in {hit:,} of {files_text(max(files, hit))}{more}"


def mended_words(verb: str, count: int, files: int) -> str:
    """Return the number of mended problems, as `Mended 3 problems in 2 files`."""
    problems = "1 problem" if count == 1 else f"{count:,} problems"
    return f"{verb} {problems} in {files_text(files)}."


def note_lines(notes: Sequence[tuple[Path, str]]) -> list[str]:
    """Return a line for each file that was not mended, with the reason."""
    return [f"{shown(path)}: {why}" for path, why in notes]


def diff_text(before: Mapping[Path, bytes], after: Mapping[Path, bytes]) -> str:
    """Return a unified diff of files, which `patch -p0` applies in the current folder."""
    pieces: list[str] = []
    for path, text in after.items():
        name = printable(shown(path))
        old, new = (one.decode(errors="replace").split("\n") for one in (before[path], text))
        lines = difflib.unified_diff(_ended(old), _ended(new), name, name)
        pieces += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        ]
    return "".join(pieces)


def without_controls(text: str) -> str:
    """Remove what a terminal obeys from a patch: escapes, other control characters, and the writing direction.

    All else stays, so that the patch fits its file.
    """
    return _CONTROLS.sub("", text)


def _ended(lines: list[str]) -> list[str]:
    """Return lines with their ends; the last one has none if its file has none."""
    return [*(f"{line}\n" for line in lines[:-1]), *filter(None, lines[-1:])]


def show_rule(rule: Rule) -> None:
    """Print the explanation of a rule."""
    width = terminal_width()
    facts = "launch check --fix mends it" if rule.is_mended else "no automatic mend"
    if rule.needs_card:
        facts += "; found only with --profile"
    lines = [*wrapped_lines([f"{rule.code} {rule.name}: {rule.what}"], width, 2), ""]
    lines += [*wrapped_lines([rule.why], width, 0), ""]
    for title, code in (("instead of", rule.bad), ("write", rule.good)):
        lines += [title, *(f"    {line}" for line in code.rstrip().splitlines()), ""]
    lines += wrapped_lines([f"source  {rule.source}"], width, 8)
    lines += wrapped_lines([f"mend    {facts}"], width, 8)
    lines += wrapped_lines(
        [f"ignore  # launch: ignore[{rule.code}]   at the end of a line of the expression"], width, 8
    )
    say(*lines)
