"""Pulling: what a run wrote comes home, verified.

First comes the list, then the digests of what is chosen, then the bytes of what is not here yet. Nothing is taken that the
digests do not announce. A transfer that breaks goes on from the bytes that it has; each file gets into its place once it is
whole, verified and on the disk.
"""

from __future__ import annotations

import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich.filesize import decimal

from launcher.base.text import files_text
from launcher.copy.mirror import Mirror
from launcher.errors import RunError
from launcher.runs.follow.view import Stage
from launcher.runs.pull.local_copies import LocalCopies
from launcher.runs.pull.transfer import Transfer, until_stable
from launcher.transport.client.desk import HostClient
from launcher.values.reported.output import TOPS, Content, Outputs, RunOutput

File = TypeVar("File", RunOutput, Content)


class Choice(NamedTuple):
    """Which files to pull: those that are named, or everything; else all but checkpoints, the smallest first up to a limit.

    Files that were changed less than `settled_s` seconds ago are left for later. `fits`: if there is too little room here, what
    fits comes, the smallest first; else nothing does.
    """

    limit: int
    paths: tuple[str, ...] = ()
    everything: bool = False
    settled_s: float = 0.0
    fits: bool = False


class Pulled(NamedTuple):
    """What a pull brought, and what stayed there.

    `fetched` came now, `present` is how many of the chosen files were here before. `yours` are files that were changed here,
    under their new names.
    """

    fetched: list[Content]
    present: int
    over_limit: list[RunOutput]
    checkpoints: list[RunOutput]
    left_out: dict[str, str]
    yours: list[Path]


def pull(desk: HostClient, mirror: Mirror, choice: Choice, stage: Stage) -> Pulled:
    """Bring what a run wrote to its places here; return what came, and what did not.

    One client at a time; another waits. Raises RunError if it does not fit here, if this disk refuses, or if files keep
    changing while they are read.
    """
    with mirror.alone("pull"), mirror.disk_errors(mirror.folder):
        work = _Pull(desk, mirror, stage)
        return until_stable(lambda: work.run(choice), f"launch pull {mirror.short}")


class _Pull:
    """A pull of one run; run again, it goes on with what is missing then."""

    def __init__(self, desk: HostClient, mirror: Mirror, stage: Stage) -> None:
        self._desk, self._mirror = desk, mirror
        self._copies = LocalCopies(mirror)
        self._transfer = Transfer(desk, mirror, self._copies, stage)
        self._fetched: list[Content] = []
        self._yours: list[Path] = []

    def run(self, choice: Choice) -> Pulled:
        every_file = choice.everything or bool(choice.paths)
        listed = self._desk.runs.outputs(self._mirror.run, self._transfer.heard(), every_file=every_file)
        selected = select(listed, choice, self._mirror.short)
        left_out = {**listed.left_out, **self._clashes(selected.chosen)}
        chosen = [file for file in selected.chosen if file.path not in left_out]
        manifest = self._transfer.digests(chosen)
        contents = manifest.files
        if not every_file:
            contents = within(contents, choice.limit)  # they may have grown
        missing = [content for content in contents if not self._copies.has(content)]
        if choice.fits:
            missing, no_room = self._transfer.fitting(missing)
            left_out |= no_room
        try:
            self._transfer.fetch(missing, self._put)
        finally:
            self._mirror.files.sync_names(self._mirror.place(content.path) for content in self._fetched)
        self._copies.save_digests()
        if not choice.paths:  # the parts may be of a larger pull that broke
            self._copies.drop_parts()
        left_out |= manifest.left_out
        here = [content for content in contents if content.path not in left_out]
        present = len(here) - len({content.path for content in self._fetched})
        return Pulled(
            self._fetched, present, selected.over_limit, selected.checkpoints, left_out, self._yours
        )

    def _put(self, content: Content, part: Path) -> None:
        moved = self._copies.put(content, part)
        if moved is not None:
            self._yours.append(moved)
        self._fetched.append(content)

    def _clashes(self, chosen: Sequence[RunOutput]) -> dict[str, str]:
        """Return the files that would share a place here with another, because this disk takes their names for the same."""
        fold = _folding_of(self._mirror.folder)
        places: dict[str, str] = {}
        clashes = {}
        for file in chosen:
            place = fold(str(self._mirror.place(file.path)))
            if place in places:
                clashes[file.path] = f"its name is that of {places[place]} on this disk"
            places.setdefault(place, file.path)
        return clashes


def came(pulled: Pulled) -> str:
    """Return what a pull brought in a few words."""
    size = sum(content.size for content in pulled.fetched)
    words = [f"{files_text(len(pulled.fetched))}, {decimal(size)}"] if pulled.fetched else []
    if pulled.present > 0:
        words.append(f"{files_text(pulled.present)} {'was' if pulled.present == 1 else 'were'} here")
    return ", ".join(words) or "no files"


class Selection(NamedTuple):
    """The files to pull, the smallest first, and what stays there: by the limit, and checkpoints that nobody named."""

    chosen: list[RunOutput]
    over_limit: list[RunOutput]
    checkpoints: list[RunOutput]


def select(listed: Outputs, choice: Choice, short: str) -> Selection:
    """Choose among the files of a run. Raises RunError for a name that none of them has."""
    before = listed.now_ns - choice.settled_s * 1e9
    files = [file for file in listed.files if not choice.settled_s or file.changed_ns <= before]
    files.sort(key=lambda file: (file.size, file.path))
    if choice.paths:
        named = {file.path for word in choice.paths for file in named_by(word, files, short)}
        return Selection([file for file in files if file.path in named], [], [])
    if choice.everything:
        return Selection(files, [], [])
    checkpoints = [file for file in files if file.kind == "checkpoint"]
    others = [file for file in files if file.kind != "checkpoint"]
    chosen = within(others, choice.limit)
    return Selection(chosen, others[len(chosen) :], checkpoints)


def named_by(word: str, files: Iterable[RunOutput], short: str) -> list[RunOutput]:
    """Return the files that a word names, a file or a folder. Raises RunError if there is none.

    It is relative to the working folder, or begins with `artifacts/`, `checkpoints/`, `home/` or `work/`.
    """
    plain = os.path.normpath(word).removeprefix("/")
    tried = [plain] if plain.split("/")[0] in TOPS else []
    for path in [*tried, "code" if plain == "." else f"code/{plain}"]:
        found = [file for file in files if file.path == path or file.path.startswith(f"{path}/")]
        if found:
            return found
    raise RunError(f"{short} wrote no {word}\n  what it wrote   launch ls {short}")


def shown_path(path: str) -> str:
    """Return how a path of a run is shown: as `named_by` takes it, relative to the working folder if it is in it."""
    top, _, rest = path.partition("/")
    return rest if top == "code" and rest.split("/")[0] not in TOPS else path


def checkpoint_of(path: str) -> str:
    """Return the checkpoint's folder that a file is in, as it is named to pull it."""
    parts = path.split("/")
    if parts[0] == "checkpoints":
        return "/".join(parts[:2])
    depth = next(index for index, part in enumerate(parts) if part.startswith("checkpoint-"))
    return shown_path("/".join(parts[: depth + 1]))


def by_number(folder: str) -> tuple[str, int]:
    """Sort `checkpoint-9` before `checkpoint-12`."""
    name = folder.rstrip("0123456789")
    return name, int(folder[len(name) :] or 0)


def within(files: Sequence[File], limit: int) -> list[File]:
    """Return the first files whose bytes together stay within a limit."""
    total, chosen = 0, []
    for file in files:
        total += file.size
        if total > limit:
            break
        chosen.append(file)
    return chosen


def _folding_of(folder: Path) -> Callable[[str], str]:
    """Return a function under which two paths are equal if the disk of a folder takes them for the same."""
    with tempfile.NamedTemporaryFile(prefix=".case-", dir=folder) as probe:
        upper = Path(probe.name).with_name(Path(probe.name).name.upper())
        is_folded = upper.exists()
    return (lambda path: unicodedata.normalize("NFC", path).casefold()) if is_folded else str
