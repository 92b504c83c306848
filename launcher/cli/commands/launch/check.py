"""check: find known bugs in training scripts before they run, and mend them."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

import typer

from launcher.cli.options import JsonFlag
from launcher.cli.output.say import complain, say
from launcher.errors import UsageError

if TYPE_CHECKING:
    from rich.status import Status

    from launcher.check.file_report import Finding
    from launcher.check.fixing import Note
    from launcher.check.many_files import Reports, Settings
    from launcher.cli.json_output.check_shapes import CheckShown
    from launcher.values.profile import Profile

_UNTIL_PROGRESS_S = 1.0
Codes = Annotated[
    list[str] | None,
    typer.Option(
        "--select", metavar="CODE,…", help="Apply only these rules: codes, their beginnings, or names."
    ),
]
IgnoredCodes = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="CODE,…", help="Do not apply these rules.")
]


def check(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", show_default=False, help="Files and folders; by default this folder."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="PROFILE", help="Also find the bugs that a script has only on this card."
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print what --fix would change, and change nothing.")
    ] = False,
    select: Codes = None,
    ignore: IgnoredCodes = None,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="CODE", help="Explain a rule, with an example.")
    ] = None,
    as_json: JsonFlag = False,
    as_sarif: Annotated[
        bool, typer.Option("--sarif", help="Print SARIF, for code hosts and editors.")
    ] = False,
) -> None:
    """Find known bugs in training scripts and notebooks, without running them.

    Python files and notebooks below a folder are checked, except those that .gitignore or .launchignore leave out. Values are
    followed through variables, functions, options and the modules that a script imports; a value that stays unknown is never a problem.

    `# launch: ignore[CODE]` in a line of the expression hides a problem. The exit code is 0 without problems, 1 with some,
    and 2 if a path cannot be read.

    Examples:
        launch check
        launch check --fix train.py
        launch check --profile t4 train.py
        launch check --explain LC101
    """
    if explain is not None:
        _explain(explain, as_json=as_json)
        return
    _refuse_contradictions(fix=fix, diff=diff, as_json=as_json, as_sarif=as_sarif)
    from launcher.check.file_search import find_files
    from launcher.check.inference.card_calls import Card
    from launcher.check.many_files import Settings, findings_of
    from launcher.check.rule_choice import chosen_codes

    card = _card(profile) if profile is not None else None
    settings = Settings(Card.of(card), chosen_codes(select or (), ignore or ()))
    files = find_files([Path(one) for one in paths or ["."]])
    reports = _checked([*files], settings, {})
    is_unreadable = any(files[path] and one.is_unreadable for path, one in reports.items())
    if diff:
        _exit(has_problems=_show_diff(reports, settings), is_unreadable=is_unreadable)
        return
    mending = _mend(reports, settings) if fix else None
    findings = findings_of(mending.reports if mending is not None else reports)
    if as_json:
        from launcher.cli.output.answer import answer

        answer(_shape(findings, len(files), card, mending))
    elif as_sarif:
        from launcher.cli.json_output.sarif import sarif_log

        print(json.dumps(sarif_log(findings)), flush=True)
    else:
        again = "" if fix else _command(paths or (), profile, select or (), ignore or ())
        _show(findings, len(files), mending, again)
        if card is None:
            _hint_at_card(settings)
    has_problems = bool(findings) or (mending is not None and bool(mending.notes))
    _exit(has_problems=has_problems, is_unreadable=is_unreadable)


class Mending(NamedTuple):
    """The result of `--fix`: the number of mended problems, the changed files, the failures, and the remaining problems."""

    number: int
    changed: tuple[Path, ...]
    notes: tuple[Note, ...]
    reports: Reports


def _refuse_contradictions(*, fix: bool, diff: bool, as_json: bool, as_sarif: bool) -> None:
    """Raise UsageError for options that exclude each other."""
    if fix and diff:
        raise UsageError("check: --diff shows what --fix would change: give one of them")
    if as_json and as_sarif:
        raise UsageError("check: --json and --sarif are two forms of the same: give one of them")
    if diff and (as_json or as_sarif):
        raise UsageError(
            "check: --diff prints a diff\n  next   launch check --json, which has the changes too"
        )


def _card(name: str) -> Profile:
    """Return the profile of a name. A name of several memory sizes means one card here. Raises UnknownNameError."""
    from launcher.config.lookup import Lookup

    lookup = Lookup()
    first, *others = lookup.profiles_meant(name)
    is_one_card = all((one.kind, one.compute) == (first.kind, first.compute) for one in others)
    return first if is_one_card else lookup.profile(name)


def _checked(paths: Sequence[Path], settings: Settings, texts: Mapping[Path, bytes]) -> Reports:
    from launcher.check.many_files import check_files

    with _Progress(len(paths)) as progress:
        return check_files(paths, settings, texts, progress.show)


class _Progress:
    """A line on the terminal with the number of checked files, if the check takes more than a second."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begin = time.monotonic()
        self._open = contextlib.ExitStack()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def show(self, done: int) -> None:
        """Show the number of files that have been checked."""
        from launcher.cli.output import streams
        from launcher.cli.signals import spinner

        if time.monotonic() - self._begin < _UNTIL_PROGRESS_S or not streams.is_terminal(stderr=True):
            return
        text = f"checked {done:,} of {self._total:,} files"
        if self._status is None:
            self._status = self._open.enter_context(spinner(streams.console(stderr=True), text))
        self._status.update(text)


def _exit(*, has_problems: bool, is_unreadable: bool) -> None:
    """Exit with 2 if a named path could not be read, with 1 if there are problems."""
    if is_unreadable:
        raise typer.Exit(2)
    if has_problems:
        raise typer.Exit(1)


def _mend(reports: Reports, settings: Settings) -> Mending:
    """Mend and write what can be mended."""
    from launcher.check.fixing import mend, write

    mended = mend(reports, lambda again, texts: _checked(again, settings, texts))
    failed = write(mended)
    done = mended.without(dict(failed), reports) if failed else mended
    return Mending(done.number, tuple(done.after), (*mended.notes, *failed), done.reports)


def _show_diff(reports: Reports, settings: Settings) -> bool:
    """Print what --fix would change; return whether it would change anything."""
    from launcher.check.fixing import mend
    from launcher.cli.text.check_text import diff_text, mended_words, note_lines, without_controls

    mended = mend(reports, lambda again, texts: _checked(again, settings, texts))
    patch = diff_text(mended.before, mended.after)
    shown = without_controls(patch)
    sys.stdout.write(shown)
    sys.stdout.flush()
    if shown != patch:
        complain("control characters in the files are left out of this patch, so it may not apply")
    for line in note_lines(mended.notes):
        complain(line)
    if mended.after:
        complain(mended_words("Would mend", mended.number, len(mended.after)))
    return bool(mended.after)


def _show(findings: Sequence[Finding], files: int, mending: Mending | None, command: str) -> None:
    """Print the remaining problems, the number of mended ones, and the next command."""
    from launcher.cli.output.wrapping import say_wrapped
    from launcher.cli.text.check_text import mended_words, note_lines, show_findings, summary

    show_findings(findings)
    if mending is not None:
        for line in note_lines(mending.notes):
            say(line)
        if mending.number:
            say(mended_words("Mended", mending.number, len(mending.changed)))
    if not files:
        complain("no Python files or notebooks here, or rules leave them out")
    say_wrapped(summary(findings, files, command))


def _hint_at_card(settings: Settings) -> None:
    """Name the rules that were not applied because no card is known."""
    from launcher.check.rules.table import RULES
    from launcher.cli.output.wrapping import complain_wrapped

    codes = [code for code, rule in RULES.items() if rule.needs_card and code in settings.codes]
    if codes:
        complain_wrapped(f"  · not checked without a card: {', '.join(codes)}   launch check --profile t4")


def _command(paths: Sequence[str], profile: str | None, select: Sequence[str], ignore: Sequence[str]) -> str:
    """Return the command that mends the same files."""
    words = ["launch", "check", "--fix", *(("--profile", profile) if profile is not None else ())]
    for option, values in (("--select", select), ("--ignore", ignore)):
        words += [word for value in values for word in (option, value)]
    return shlex.join([*words, *paths])


def _shape(
    findings: Sequence[Finding], files: int, card: Profile | None, mending: Mending | None
) -> CheckShown:
    from launcher.check.rules.table import RULES
    from launcher.cli.json_output.check_shapes import CheckShown, CodeChange, CodeProblem, CodeRegion
    from launcher.cli.text.check_text import note_lines

    problems = [
        CodeProblem(
            path=str(one.path),
            region=CodeRegion(**one.region._asdict()),
            code=one.code,
            rule=RULES[one.code].name if one.code else None,
            message=one.message,
            mend=one.mend or None,
            changes=[
                CodeChange(
                    path=str(change.edit.path),
                    region=CodeRegion(**change.region._asdict()),
                    text=change.edit.text.decode(),
                )
                for change in one.changes
            ],
        )
        for one in findings
    ]
    return CheckShown(
        profile=card.name if card is not None else None,
        files=files,
        problems=problems,
        mended=mending.number if mending is not None else None,
        changed=[str(path) for path in mending.changed] if mending is not None else [],
        notes=note_lines(mending.notes) if mending is not None else [],
    )


def _explain(word: str, *, as_json: bool) -> None:
    """Explain a rule. Raises UnknownNameError."""
    from launcher.check.rule_choice import rule_called
    from launcher.cli.text.check_text import show_rule

    rule = rule_called(word)
    if not as_json:
        show_rule(rule)
        return
    from launcher.cli.json_output.check_shapes import RuleShown
    from launcher.cli.output.answer import answer

    answer(RuleShown.model_validate(rule))
