"""compare: the differences between runs, their outcomes, and one picture with all curves."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import JsonFlag
from launcher.cli.output.say import complain, say, without_escapes
from launcher.errors import RunError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from launcher.cli.json_output.comparison_shapes import ComparisonShown
    from launcher.compare.code_diff import CodeDiff
    from launcher.compare.comparing import Comparison
    from launcher.copy.local_copy import LocalCopy
    from launcher.copy.run_files import RunFiles

_MAX_NAMED = 3


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…", help="Runs: an id, the start of it or of its last part; `last`; or a batch."
        ),
    ],
    diff: Annotated[
        bool, typer.Option("--diff", help="Also print a diff of the code; for two runs.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the picture to this PNG file; by default into runs/compared.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the differences between runs and the outcome of each, and draw all curves in one picture.

    It compares plan and settings, card, used precision, packages, code and data. It also shows state, time, step, and the
    final and the best value of each metric. More than six runs get a line each.

    Only local copies are read; no host is asked. --diff may fetch code that has changed here since its upload.

    Examples:
        launch compare w8q2 p0x1
        launch compare w8q2 p0x1 --diff
        launch compare w8q2 p0x1 a77c -o curves.png
    """
    from launcher.compare import comparing
    from launcher.compare.compared_curves import check_free
    from launcher.copy.run_files import RunFiles

    words = [word for given in runs for word in _runs_of(given)]
    local_copies = _distinct(_local_copies(words), words)
    if diff and len(local_copies) != 2:
        raise UsageError("compare: --diff compares two runs\n  next   launch compare RUN RUN --diff")
    if output is not None and output.suffix.lower() != ".png":
        raise UsageError(f"-o {output}: the picture is a PNG\n  example   -o {output.stem or 'curves'}.png")
    picture = output if output is not None else comparing.picture_of(local_copies)
    # A path from the user may contain symbolic links; the path to `compared` beside the runs may not.
    files = RunFiles(picture.parent, picture.parent if output is not None else picture.parent.parent)
    check_free(files, picture.name)
    comparison = comparing.compare(local_copies)
    code = _diff(local_copies) if diff else None
    if as_json:
        from launcher.cli.output.answer import answer

        answer(_shape(comparison, code, _draw(comparison, files, picture)))
    else:
        _show(comparison, code)
        _show_picture(_draw(comparison, files, picture))
    if code is not None and code.errors:
        raise code.errors[0]


def _runs_of(word: str) -> list[str]:
    """Return the runs of a batch if the word is its name, else the word."""
    from launcher.batch.batch_queue import names, open_queue

    if word not in names():
        return [word]
    with open_queue(word, only_looks=True) as queue:
        return [item.run for item in queue.items() if item.run is not None] or [word]


def _local_copies(words: Sequence[str]) -> list[LocalCopy]:
    """Return the local copies of runs. Raises UnknownNameError that names every word without a run."""
    from launcher.runs.locating import local_copy_here

    local_copies, unknown = [], []
    for word in words:
        try:
            local_copies.append(local_copy_here(word))
        except UnknownNameError as error:
            unknown.append(str(error))
    if unknown:
        raise UnknownNameError("\n".join(unknown))
    return local_copies


def _distinct(local_copies: list[LocalCopy], words: Sequence[str]) -> list[LocalCopy]:
    """Return the local copies. Raises UsageError for fewer than two runs, or for a run named twice."""
    for local_copy in local_copies:
        twins = [word for word, other in zip(words, local_copies, strict=True) if other.run == local_copy.run]
        if len(twins) > 1:
            raise UsageError(
                f"compare: {' and '.join(twins)} are one run, {local_copy.run}\n  the others   launch ps"
            )
    if len(local_copies) < 2:
        raise UsageError(
            f"compare: {words[0]} with which other run?\n  next   launch compare {words[0]} RUN\n  all of them   launch ps"
        )
    return local_copies


def _diff(local_copies: Sequence[LocalCopy]) -> CodeDiff:
    from launcher.cli.follow.screens import make_stage
    from launcher.compare.code_diff import code_diff

    with make_stage("fetching") as stage:
        return code_diff(local_copies[0], local_copies[1], stage)


def _draw(comparison: Comparison, files: RunFiles, path: Path) -> Path | None:
    from launcher.compare import comparing

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path if comparing.draw(comparison, files, path.name) else None
    except OSError as error:
        words = f"{error.filename or path}: {error.strerror}"
        raise RunError(f"{words}\n  another place   launch compare RUN RUN -o FILE.png") from error


def _show(comparison: Comparison, code: CodeDiff | None) -> None:
    from launcher.cli.output.wrapping import complain_wrapped, terminal_width
    from launcher.cli.text.comparison_text import show_comparison

    if not (comparison.plan or comparison.trees):
        say("nothing in plan, code and data differs, as recorded on this computer")
    left_out = show_comparison(comparison, terminal_width())
    if left_out:
        named = " ".join(run.local_copy.short for run in comparison.runs)
        complain_wrapped(f"  · not shown: {', '.join(left_out)}   all of it: launch compare {named} --json")
    complain_wrapped(*(f"  · {note}" for note in _notes(comparison, has_diff=code is not None)))
    if code is not None:
        _show_diff(code)


def _show_picture(drawn: Path | None) -> None:
    from launcher.cli.follow.ending import shown_path

    if drawn is None:
        complain("  · no picture: none of these runs has reported a metric")
    else:
        say(shown_path(drawn.resolve()))


def _notes(comparison: Comparison, *, has_diff: bool) -> Iterator[str]:
    """Yield notes on missing information about the runs, each with the command that gets it."""
    runs = comparison.runs
    if live := [run.local_copy for run in runs if not run.has_ended]:
        yield f"had not ended at the last contact: {_named(live)}   launch attach {live[0].short}"
    if planless := [run.local_copy for run in runs if not run.has_plan]:
        yield f"the plan is not here: {_named(planless)}   launch attach {planless[0].short}"
    pair = " ".join(run.local_copy.short for run in runs) if len(runs) == 2 and not has_diff else None
    if unsent := [run.local_copy for run in runs if not run.has_manifest]:
        mend = f"   launch compare {pair} --diff asks the host" if pair else ""
        yield f"the code is not on record here, as of a run of another client: {_named(unsent)}{mend}"
    elif comparison.files and pair:
        yield f"the code differs   launch compare {pair} --diff"


def _named(local_copies: Sequence[LocalCopy]) -> str:
    names = ", ".join(local_copy.short for local_copy in local_copies[:_MAX_NAMED])
    more = len(local_copies) - _MAX_NAMED
    return f"{names} and {more} more" if more > 0 else names


def _show_diff(code: CodeDiff) -> None:
    """Print the diffs unchanged, to read or apply, except for terminal escapes, which are removed."""
    for file in code.files:
        if file.text is not None:
            sys.stdout.write(without_escapes(file.text))
        else:
            say(f"{file.path}: no diff: {file.why}")
    if not (code.files or code.errors):
        say("the code is the same")


def _shape(comparison: Comparison, code: CodeDiff | None, drawn: Path | None) -> ComparisonShown:
    from launcher.cli.json_output.comparison_shapes import ComparisonShown

    diffs = {file.path: file for file in code.files} if code is not None else {}
    files = [
        {**file._asdict(), "diff": diff and diff.text, "why": diff and diff.why}
        for file in comparison.files
        for diff in [diffs.get(file.path)]
    ]
    drawn_at = None if drawn is None else str(drawn.resolve())
    return ComparisonShown(**{**comparison._asdict(), "files": files}, picture=drawn_at)
