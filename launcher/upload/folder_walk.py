"""Walk a folder to upload. Return the entries to send, and the excluded ones with their reasons.

A `.launchignore` has priority, then the default exclusions, then git.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from launcher.copy import index_folder
from launcher.errors import UsageError
from launcher.upload.default_exclusions import ROOT_ID, of_name
from launcher.upload.digests import Digests
from launcher.upload.git_rules import ignored_by_git
from launcher.upload.launch_ignore import FILE, IgnoreVerdict, LaunchIgnore, read_rules
from launcher.values.upload_selection import ExcludedPath, ExclusionReason, Size

MAX_FILES = 200_000
MAX_DEPTH = 300
MAX_COUNTED = 5_000
"""The maximum number of entries of an excluded folder whose sizes are added up."""


class WalkedFile(NamedTuple):
    """A local file, and its path on the host relative to the run: `code/…` or `data/…`.

    `link` is the target of a link, `folder` the permission bits of an empty folder.
    """

    path: str
    source: str
    link: str | None = None
    folder: int | None = None
    size: int = 0

    @property
    def is_file(self) -> bool:
        """Whether it is neither a link nor an empty folder."""
        return self.link is None and self.folder is None

    @property
    def name(self) -> str:
        """The path as shown to the user: relative to the code folder, or `data/…`."""
        return self.path.removeprefix("code/")


class Mode(NamedTuple):
    """How a folder is walked: the paths that git ignores in it, and the rules that apply.

    `rules` are those of each `.launchignore` that applies, the innermost first. `is_included`: a rule
    included the folder, so git's rules are ignored. `only_included`: the folder is excluded, except for
    entries that a rule includes. `by_path`: only rules that contain the folder's path apply.
    """

    ignored: frozenset[str]
    rules: tuple[LaunchIgnore, ...] = ()
    is_included: bool = False
    only_included: bool = False
    by_path: bool = False


_WHY = {IgnoreVerdict.OUT: ExclusionReason.RULE, IgnoreVerdict.IN_BY_NAME: None}
"""The verdicts that no other rule can change."""


class FolderWalk:
    """The walk of one folder, named `top` on the host. `hidden` are absolute paths to exclude."""

    def __init__(
        self,
        folder: Path,
        top: str,
        key: str | None,
        rules: Sequence[LaunchIgnore],
        hidden: Mapping[str, ExclusionReason],
        digests: Digests,
    ) -> None:
        self.entries: list[WalkedFile] = []
        self.left_out: list[ExcludedPath] = []
        self.included: list[ExcludedPath] = []
        self._folder = folder
        self._base = (
            f"{folder}".rstrip(os.sep) + os.sep
        )  # a string: making a Path for each of 10,000 files takes longer than reading the disk
        self._top, self._key, self._hidden, self._digests = top, key, hidden, digests
        self._rules = tuple(rules)
        self._links: list[WalkedFile] = []
        self._uses_git = False

    def run(self, *, use_git: bool) -> None:
        """Walk the folder. Raises UsageError if git fails."""
        ignored = ignored_by_git(self._folder) if use_git else None
        self._uses_git = use_git
        self._walk("", Mode(ignored or frozenset(), self._rules))
        self._take_links()

    def _walk(self, where: str, mode: Mode) -> None:
        if where.count("/") > MAX_DEPTH:
            raise UsageError(f"{self._base}{where} is more than {MAX_DEPTH} folders deep")
        try:
            with os.scandir(self._base + where) as scan:
                items = sorted(scan, key=lambda item: item.name)
        except OSError:
            self._leave(where or ".", ExclusionReason.UNREADABLE)
            return
        if where and self._uses_git and any(item.name == ".git" for item in items):
            ignored = (
                ignored_by_git(Path(self._base + where)) or frozenset()
            )  # the rules of a submodule, or of another repository inside this one
            mode = mode._replace(ignored=mode.ignored | {where + name for name in ignored})
        if where and any(item.name == FILE for item in items):
            # As with git, a file in an excluded folder includes nothing.
            inner = read_rules(Path(self._base + where), inner=where, may_include=not mode.only_included)
            mode = mode._replace(rules=(*([inner] if inner else []), *mode.rules))
        before = len(self.entries) + len(self._links)
        name = os.path.basename((self._base + where)[:-1])
        for item in items:
            if item.is_dir(follow_symlinks=False):
                self._take_folder(item, where, name, mode)
            else:
                self._take_file(item, where, name, mode)
        is_empty = len(self.entries) + len(self._links) == before
        if is_empty and not mode.only_included and (where or self._key):
            path = self._base + where
            bits = os.stat(path).st_mode & 0o777
            self.entries.append(WalkedFile(f"{self._top}/{where}".rstrip("/"), path, folder=bits))

    def _take_folder(self, item: os.DirEntry[str], where: str, parent: str, mode: Mode) -> None:
        path = where + item.name
        # No rule can include a root, because it grows with each launch.
        if os.path.lexists(f"{self._base}{path}/{ROOT_ID}"):
            if not mode.only_included:
                self._leave(f"{path}/", ExclusionReason.ROOT)
            return
        verdict = _verdict(path, mode.rules, is_folder=True)
        why = _WHY[verdict] if verdict in _WHY else self._why(item, f"{path}/", parent, verdict, mode)
        if why is None and (verdict is not None or not mode.only_included):
            self._walk(f"{path}/", Mode(mode.ignored, mode.rules, mode.is_included or verdict is not None))
            return
        if why is not None and not mode.only_included:
            size = None if why.is_routine else _size(self._base + path)
            self._leave(f"{path}/", why, size)
        if not any(rules.includes for rules in mode.rules):
            return
        # A rule like `!*.py` does not apply inside an environment or a git-ignored folder; a rule with the
        # folder's path does.
        plain_why = self._why(item, f"{path}/", parent, None, mode)
        is_secret = plain_why is not None and plain_why.is_secret
        by_path = mode.by_path or plain_why is not None
        if not by_path or any(rules.leads_below(path, by_name=is_secret) for rules in mode.rules):
            self._walk(f"{path}/", Mode(mode.ignored, mode.rules, only_included=True, by_path=by_path))

    def _take_file(self, item: os.DirEntry[str], where: str, parent: str, mode: Mode) -> None:
        path = where + item.name
        verdict = _verdict(path, mode.rules, is_folder=False)
        if mode.only_included and verdict is None:
            return
        why = _WHY[verdict] if verdict in _WHY else self._why(item, path, parent, verdict, mode)
        source = self._base + path
        if item.is_symlink():
            if why is None:
                self._links.append(WalkedFile(f"{self._top}/{path}", source))
            else:
                self._leave(path, why)
            return
        status = item.stat(follow_symlinks=False)
        if why is None and not S_ISREG(status.st_mode):
            why = ExclusionReason.SPECIAL
        if (
            why is None
            and verdict is not IgnoreVerdict.IN_BY_NAME
            and self._digests.is_private_key(source, status)
        ):
            why = ExclusionReason.PRIVATE_KEY
        if why is None and verdict is IgnoreVerdict.IN_BY_NAME:
            self._note_included(item.name, parent, path, status)
        if why is None:
            self._add(WalkedFile(f"{self._top}/{path}", source, None, None, status.st_size))
        elif not mode.only_included:
            self._leave(path, why, Size(status.st_size))

    def _note_included(self, name: str, parent: str, path: str, status: os.stat_result) -> None:
        """Record a credential that is sent because a rule names it."""
        why = of_name(name, parent, is_folder=False)
        if self._digests.is_private_key(self._base + path, status):
            why = ExclusionReason.PRIVATE_KEY
        if why is not None and why.is_secret:
            self.included.append(ExcludedPath(path, why, Size(status.st_size), None, self._key))

    def _add(self, entry: WalkedFile) -> None:
        self.entries.append(entry)
        if len(self.entries) > MAX_FILES:
            raise UsageError(
                f"{self._folder} holds more than {MAX_FILES:,} files: is this the project's folder?\n"
                '  cd into it, or name it: code = "…" in the job file; a .launchignore leaves files out'
            )

    def _why(
        self, item: os.DirEntry[str], path: str, parent: str, verdict: IgnoreVerdict | None, mode: Mode
    ) -> ExclusionReason | None:
        """Return why an entry is excluded, or None if it is not.

        The default exclusions exclude it, or git, unless a rule includes it.
        """
        is_folder = path.endswith("/")
        if self._hidden and (hidden := self._hidden.get(self._base + path.rstrip("/"))) is not None:
            return hidden
        if why := of_name(item.name, parent, is_folder=is_folder):
            return why
        if is_folder and os.path.exists(f"{self._base}{path}pyvenv.cfg"):
            return ExclusionReason.ENVIRONMENT
        if is_folder and os.path.exists(f"{self._base}{path}{index_folder.COUNT_FILE}"):
            return ExclusionReason.RUNS  # of another LAUNCH_RUNS, or of a launch from a subfolder
        return (
            ExclusionReason.GIT if verdict is None and not mode.is_included and path in mode.ignored else None
        )

    def _leave(
        self, path: str, why: ExclusionReason, size: Size | None = None, link: str | None = None
    ) -> None:
        self.left_out.append(ExcludedPath(path, why, size, link, self._key))

    # Links

    def _take_links(self) -> None:
        """Take the links whose targets are sent. A link to a missing target is sent too, as it is."""
        if not self._links:
            return
        travelling = {
            self._top,
            *(entry.path for entry in self.entries),
            *(link.path for link in self._links),
        }
        travelling |= {parent for path in travelling for parent in _parents(path)}
        for entry in self._links:
            written, parent = os.readlink(entry.source), os.path.dirname(entry.source)
            path = entry.path.removeprefix(f"{self._top}/")
            real = os.path.realpath(os.path.join(parent, written))
            if not f"{real}{os.sep}".startswith(self._base):
                self._leave(path, ExclusionReason.LINK_OUT, link=written)
            elif os.path.lexists(real) and self._there(real) not in travelling:
                self._leave(path, ExclusionReason.LINK_TO_LEFT_OUT, link=written)
            else:
                plain = os.path.normpath(os.path.join(parent, written))
                is_direct = self._there(plain) in travelling or not os.path.lexists(real)
                target = plain if is_direct and plain.startswith(self._base) else real
                is_kept = is_direct and not os.path.isabs(written)
                self.entries.append(
                    entry._replace(link=written if is_kept else os.path.relpath(target, parent))
                )

    def _there(self, path: str) -> str:
        """Return the path on the host of an absolute path in this folder."""
        return os.path.normpath(f"{self._top}/{path[len(self._base) :]}")


def _verdict(path: str, several: Sequence[LaunchIgnore], *, is_folder: bool) -> IgnoreVerdict | None:
    for rules in several:
        if (verdict := rules.verdict(path, is_folder=is_folder)) is not None:
            return verdict
    return None


def _parents(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _size(folder: str) -> Size:
    """Add up the sizes of the files below an excluded folder, up to MAX_COUNTED entries."""
    total = count = 0
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as items:
                for item in items:
                    count += 1
                    if count > MAX_COUNTED:
                        return Size(total, is_at_least=True)
                    if item.is_dir(follow_symlinks=False):
                        folders.append(item.path)
                    else:
                        total += item.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return Size(total)
