"""Mend problems: apply the changes of findings to files, check again, and repeat until no change is left."""

from __future__ import annotations

import ast
import bisect
import os
import stat
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from launcher.base.whole_file import write_whole
from launcher.check.edit import Edit, applied
from launcher.check.file_report import Finding, digest
from launcher.check.many_files import Reports, findings_of
from launcher.check.reading.notebook import SUFFIX, read_notebook
from launcher.check.reading.source_file import read_bytes, read_source
from launcher.check.reading.unchecked import UncheckedError

CHANGED = "has changed since it was checked: not mended"
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_MAX_TRIALS = 200
_MAX_ROUNDS = 5
"""Changes of one place are made one after the other; more rounds than this would mean rules that contradict each other."""

Note = tuple[Path, str]
Check = Callable[[Sequence[Path], Mapping[Path, bytes]], Reports]
"""Check files again, with contents that are not written yet."""


class Mended(NamedTuple):
    """The mended files: their contents before and after, and the files that each mended problem changes.

    `notes` are the reasons why others were not mended, each with its file.
    """

    before: dict[Path, bytes]
    after: dict[Path, bytes]
    mended: tuple[frozenset[Path], ...]
    notes: tuple[Note, ...]
    reports: Reports

    @property
    def number(self) -> int:
        """The number of mended problems."""
        return len(self.mended)

    def without(self, failed: Collection[Path], reports: Reports) -> Mended:
        """Return the mends without those of files that could not be written. `reports` are those before the mends."""
        again = {
            path: one
            for path, one in reports.items()
            if path in failed or any(c.edit.path in failed for f in one.findings for c in f.changes)
        }
        return self._replace(
            after={path: text for path, text in self.after.items() if path not in failed},
            mended=tuple(paths for paths in self.mended if not paths & {*failed}),
            reports=self.reports | again,
        )


def mend(reports: Reports, check: Check) -> Mended:
    """Mend what can be mended, and return the new contents of files and the remaining problems. Write nothing."""
    mending = _Mending(reports)
    for _ in range(_MAX_ROUNDS):
        changed = mending.apply()
        if not changed:
            break
        again = [path for path, one in mending.reports.items() if changed & {path, *one.used}]
        mending.reports |= check(again, mending.after)
    after = {path: text for path, text in mending.after.items() if text != mending.before[path]}
    before = {path: mending.before[path] for path in after}
    return Mended(before, after, tuple(mending.mended), tuple(mending.notes), mending.reports)


def write(mended: Mended) -> list[Note]:
    """Write the mended files, each as a whole, with its permissions; return the files that could not be written.

    A file that has changed since it was checked stays as it is.
    """
    problems: list[Note] = []
    for path, text in mended.after.items():
        real = Path(os.path.realpath(path))
        try:
            if read_bytes(real) != mended.before[path]:
                problems.append((path, CHANGED))
                continue
            before = real.stat()
            if not before.st_mode & _WRITABLE:
                problems.append((path, "is read-only: not mended"))
                continue
            write_whole(real, text, before)
        except UncheckedError as error:
            problems.append((path, f"{error.why}: not mended"))
        except OSError as error:
            problems.append((path, f"cannot be written: {error.strerror}: not mended"))
    return problems


class _Mending:
    """The state between rounds."""

    def __init__(self, reports: Reports) -> None:
        self.reports = dict(reports)
        self.before: dict[Path, bytes] = {}
        self.after: dict[Path, bytes] = {}
        self.mended: list[frozenset[Path]] = []
        self.notes: dict[Note, None] = {}
        self._failed: set[tuple[str, int, int, int, str]] = set()

    def apply(self) -> set[Path]:
        """Apply the changes of this round's findings; return the files that they change."""
        findings = [one for one in findings_of(self.reports) if one.changes and one.key not in self._failed]
        digests: dict[Path, bytes] = {}
        for report in self.reports.values():
            digests |= report.digests
        findings = [one for one in findings if self._is_current(one, digests)]
        chosen = _compatible(findings)
        texts = self._texts_after(chosen)
        if texts is None:
            chosen, texts = self._one_by_one(chosen)
        self.mended += [frozenset(change.edit.path for change in one.changes) for one in chosen]
        changed = {path for path, text in texts.items() if text != self.after[path]}
        self.after |= texts
        return changed

    def _is_current(self, finding: Finding, digests: Mapping[Path, bytes]) -> bool:
        """Whether the files of a finding are still those in which it was found."""
        for path in {change.edit.path for change in finding.changes}:
            if path not in self.after:
                try:
                    self.before[path] = self.after[path] = read_bytes(path)
                except UncheckedError as error:
                    self._note(path, f"{error.why}: not mended")
                    return False
            if digest(self.after[path]) != digests.get(path):
                self._note(path, CHANGED)
                return False
        return True

    def _texts_after(self, findings: Iterable[Finding]) -> dict[Path, bytes] | None:
        """Return the new texts of the files that findings change; None if one of them would be no Python."""
        edits: dict[Path, list[Edit]] = {}
        for one in findings:
            for change in one.changes:
                edits.setdefault(change.edit.path, []).append(change.edit)
        texts = {}
        for path, several in edits.items():
            try:
                texts[path] = _edited(path, self.after[path], several)
                tree = read_source(path, texts[path]).tree
                if not _compiles(tree) and _compiles(read_source(path, self.after[path]).tree):
                    return None
            except (UncheckedError, ValueError):
                return None
        return texts

    def _one_by_one(self, findings: Sequence[Finding]) -> tuple[list[Finding], dict[Path, bytes]]:
        """Return the findings whose changes together leave valid Python, and the texts; note the others."""
        chosen: list[Finding] = []
        texts: dict[Path, bytes] = {}
        waiting = [[*findings]]
        for trial in count(1):
            if not waiting:
                break
            some = waiting.pop()
            more = self._texts_after([*chosen, *some]) if trial <= _MAX_TRIALS else None
            if more is not None:
                chosen += some
                texts = more
            elif len(some) > 1:  # halves: one bad mend among thousands takes few trials
                half = len(some) // 2
                waiting += [some[half:], some[:half]]
            else:
                one = some[0]
                self._failed.add(one.key)
                why = f"the mend of {one.code} at {one.region.start_text} would not be valid Python: left as it is"
                self._note(one.path, why)
        return chosen, texts

    def _note(self, path: Path, text: str) -> None:
        self.notes[path, text] = None


def _compiles(tree: ast.Module) -> bool:
    """Whether Python takes a tree: the parser allows a keyword twice, and `from __future__` below other imports."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _compatible(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings whose changes do not overlap with those of one before: the others wait for the next round."""
    chosen: list[Finding] = []
    taken: dict[Path, list[Edit]] = {}
    for one in findings:
        edits = [change.edit for change in one.changes]
        if not any(_overlaps(edit, taken.get(edit.path, [])) for edit in edits):
            chosen.append(one)
            for edit in edits:
                own = taken.setdefault(edit.path, [])
                if edit not in _beside(edit, own):
                    bisect.insort(own, edit)
    return chosen


def _beside(edit: Edit, others: list[Edit]) -> list[Edit]:
    """Return the edits before and after a place, of sorted ones that do not overlap."""
    place = bisect.bisect_left(others, edit)
    return others[max(0, place - 1) : place + 2]


def _overlaps(edit: Edit, others: list[Edit]) -> bool:
    """Whether an edit shares bytes with another one that is not the same, or both insert at one place."""
    return any(
        edit != one and ((edit.start < one.end and one.start < edit.end) or edit.start == one.start)
        for one in _beside(edit, others)
    )


def _edited(path: Path, data: bytes, edits: Sequence[Edit]) -> bytes:
    """Return a file's bytes after some edits. Raises UncheckedError or ValueError if they cannot be made."""
    if path.suffix != SUFFIX:
        return applied(data, edits)
    ordered = sorted(set(edits), key=lambda one: (one.start, one.end))
    return read_notebook(data).with_edits([(one.start, one.end, one.text) for one in ordered])
