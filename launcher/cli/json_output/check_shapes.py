"""`--json` output of `check`."""

from __future__ import annotations

from typing import Literal

from launcher.cli.json_output.json_shape import Part, Shape


class CodeRegion(Part):
    """A part of a file. Lines and columns count from 1, columns in characters; the end is the place after the last one.

    `cell` is the number of a notebook's cell, from 1, whose lines these are.
    """

    cell: int | None
    line: int
    column: int
    end_line: int
    end_column: int


class CodeChange(Part):
    """A part of a file, and the text that replaces it."""

    path: str
    region: CodeRegion
    text: str


class CodeProblem(Part):
    """A problem. `code` and `rule` are null for a file or a cell that cannot be checked.

    `changes` mend it; without any, `--fix` leaves it.
    """

    path: str
    region: CodeRegion
    code: str | None
    rule: str | None
    message: str
    mend: str | None
    changes: list[CodeChange]


class CheckShown(Shape):
    """`launch check`: the problems of some files.

    `files` is the number of checked files. With `--fix`, `mended` is the number of mended problems, `changed` has the
    paths of the changed files, and `problems` those that are left; otherwise `mended` is null. `notes` are the reasons
    why others could not be mended.
    """

    kind: Literal["check"] = "check"
    profile: str | None
    files: int
    problems: list[CodeProblem]
    mended: int | None
    changed: list[str]
    notes: list[str]


class RuleShown(Shape):
    """`launch check --explain`: a rule, with an example before and after its mend.

    `is_mended`: `--fix` can mend it. `needs_card`: it is found only with `--profile`.
    """

    kind: Literal["rule"] = "rule"
    code: str
    name: str
    what: str
    why: str
    bad: str
    good: str
    source: str
    is_mended: bool
    needs_card: bool
