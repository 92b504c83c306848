"""The results of `make gpu`: one JSON file to which each part adds its own, and the Markdown that is rendered from it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gpu.parts import PARTS, Column, Part, Row

VERSION = 1
Document = dict[str, Any]
"""`version`, `rehearsed`, and by its name the latest result of each part."""
Result = dict[str, Any]
"""`state` (done, failed), `why` of a failure, `seconds`, `date`, `commit`, `machine`, and `rows`."""

_TITLE = "# With a card"
_REHEARSED = """\
# A rehearsal on a CPU

**No card was used.** Everything is tiny. A figure here says that the part runs, and nothing about a card."""
_OVERVIEW = (Column("part", "part"), Column("state", "state"), Column("seconds", "seconds", "{:.0f}"))
_EMPTY = "Not run: `make gpu PART={}`."


def empty(*, is_rehearsed: bool) -> Document:
    """Return a document without results."""
    return {"version": VERSION, "rehearsed": is_rehearsed, "parts": {}}


def read(path: Path, *, is_rehearsed: bool) -> Document:
    """Read a document; a file that is not there is an empty one. Raises ValueError for one of the other kind."""
    if not path.exists():
        return empty(is_rehearsed=is_rehearsed)
    document: Document = json.loads(path.read_text())
    if document["rehearsed"] != is_rehearsed:
        raise ValueError(f"{path} is {'' if document['rehearsed'] else 'not '}of a rehearsal: remove it")
    return document


def merged(document: Document, name: str, result: Result) -> Document:
    """Return a document in which a part's result replaces its earlier one; the others stay."""
    return {**document, "parts": {**document["parts"], name: result}}


def write(document: Document, json_path: Path) -> None:
    """Write a document, and the Markdown beside it; each file is replaced as a whole."""
    json_path.parent.mkdir(parents=True, exist_ok=True)
    for path, text in (
        (json_path, json.dumps(document, indent=1) + "\n"),
        (json_path.with_suffix(".md"), markdown(document)),
    ):
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)


def markdown(document: Document) -> str:
    """Render a document: each part has its section, whether it has run or not."""
    is_rehearsed = document["rehearsed"]
    sections = [_section(name, PARTS[name], document["parts"].get(name), is_rehearsed) for name in PARTS]
    title = _REHEARSED if is_rehearsed else _TITLE
    written = "Written by `REHEARSE=1 make gpu`" if is_rehearsed else "Written by `make gpu`"
    return "\n\n".join([title, f"{written}; do not edit.", _overview(document), *sections]) + "\n"


def _overview(document: Document) -> str:
    """Return a table of the parts, and how they ended."""
    rows: list[Row] = []
    for name in PARTS:
        result = document["parts"].get(name, {"state": "not run", "why": None})
        state = ": ".join(filter(None, (result["state"], result["why"])))
        rows.append({"part": f"`{name}`", "state": state, "seconds": result.get("seconds")})
    return _table(_OVERVIEW, rows)


def _section(name: str, part: Part, result: Result | None, is_rehearsed: bool) -> str:
    head = f"## {part.title}"
    if result is None:
        return f"{head}\n\n{_EMPTY.format(name)}"
    state = f"**Failed: {result['why']}.** " if result["state"] != "done" else ""
    rehearsed = "A rehearsal on a CPU. " if is_rehearsed else ""
    ran = f"{state}{rehearsed}{result['date']}, {result['seconds']:.0f} s, commit {result['commit']}; {_machine(result['machine'])}."
    return "\n\n".join(
        [head, part.note, ran, *([_table(part.columns, result["rows"])] if result["rows"] else [])]
    )


def _machine(machine: dict[str, Any]) -> str:
    """Describe the machine; a part that failed before it looked at one has none."""
    if not machine:
        return "an unknown machine"
    others = (f"{name} {version}" for name, version in machine.items() if name != "card")
    return ", ".join([machine.get("card", "no card"), *others])


def _table(columns: tuple[Column, ...], rows: list[Row]) -> str:
    lines = [[column.head for column in columns], ["---"] * len(columns)]
    lines += [[_cell(column, row.get(column.key)) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(column: Column, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, (int, float)):
        return column.form.format(value)
    return str(value).replace("|", "\\|").replace("\n", " ")
