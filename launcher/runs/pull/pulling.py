"""Pull a run's files, verified.

The host sends the list of files, then the digests of the chosen files, then the missing bytes. Only files with
an announced digest are accepted. An interrupted transfer continues with the missing bytes. Each file is put
into its place once it is whole, verified and synced.
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
from launcher.copy.local_copy import LocalCopy
from launcher.errors import RunError
from launcher.runs.follow.view import Stage
from launcher.runs.pull.local_copies import LocalCopies
from launcher.runs.pull.transfer import Transfer, until_stable
from launcher.transport.client.host_client import HostClient
from launcher.values.reported.output import TOPS, Content, Outputs, RunOutput

File = TypeVar("File", RunOutput, Content)


class Choice(NamedTuple):
    """The files to pull: the named ones, or all; by default all but checkpoints, the smallest first up to a limit.

    Files that were changed less than `settled_s` seconds ago are left for later. `fits`: if the disk here has
    too little room, pull the files that fit, the smallest first; otherwise pull none.
    """

    limit: int
    paths: tuple[str, ...] = ()
    everything: bool = False
    settled_s: float = 0.0
    fits: bool = False


class Pulled(NamedTuple):
    """The result of a pull, and the files that stayed on the host.

    `fetched` are the files downloaded now, `present` is the number of chosen files that were here before.
    `yours` are the new names of files that the user had changed here.
    """

    fetched: list[Content]
    present: int
    over_limit: list[RunOutput]
    checkpoints: list[RunOutput]
    left_out: dict[str, str]
    yours: list[Path]


def pull(client: HostClient, local_copy: LocalCopy, choice: Choice, stage: Stage) -> Pulled:
    """Pull a run's files to their places here; return the fetched files and those that stayed.

    Only one client pulls at a time; others wait. Raises RunError if the files do not fit here, if this disk
    refuses a write, or if files keep changing while they are read.
    """
    with local_copy.alone("pull"), local_copy.disk_errors(local_copy.folder):
        work = _Pull(client, local_copy, stage)
        return until_stable(lambda: work.run(choice), f"launch pull {local_copy.short}")


class _Pull:
    """A pull of one run. Running it again fetches the files that are still missing."""

    def __init__(self, client: HostClient, local_copy: LocalCopy, stage: Stage) -> None:
        self._client, self._local_copy = client, local_copy
        self._copies = LocalCopies(local_copy)
        self._transfer = Transfer(client, local_copy, self._copies, stage)
        self._fetched: list[Content] = []
        self._yours: list[Path] = []

    def run(self, choice: Choice) -> Pulled:
        every_file = choice.everything or bool(choice.paths)
        listed = self._client.runs.outputs(
            self._local_copy.run, self._transfer.heard(), every_file=every_file
        )
        selected = select(listed, choice, self._local_copy.short)
        left_out = {**listed.left_out, **self._clashes(selected.chosen)}
        chosen = [file for file in selected.chosen if file.path not in left_out]
        manifest = self._transfer.digests(chosen)
        contents = manifest.files
        if not every_file:
            contents = within(contents, choice.limit)  # files may have grown since they were listed
        missing = [content for content in contents if not self._copies.has(content)]
        if choice.fits:
            missing, no_room = self._transfer.fitting(missing)
            left_out |= no_room
        try:
            self._transfer.fetch(missing, self._put)
        finally:
            self._local_copy.files.sync_names(
                self._local_copy.place(content.path) for content in self._fetched
            )
        self._copies.save_digests()
        if not choice.paths:  # if only some files were named, keep the parts of a larger, interrupted pull
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
        """Return the files that would share a local place with another, because this disk does not distinguish their names."""
        fold = _folding_of(self._local_copy.folder)
        places: dict[str, str] = {}
        clashes = {}
        for file in chosen:
            place = fold(str(self._local_copy.place(file.path)))
            if place in places:
                clashes[file.path] = f"this disk cannot distinguish its name from {places[place]}"
            places.setdefault(place, file.path)
        return clashes


def came(pulled: Pulled) -> str:
    """Return the fetched files of a pull in a few words."""
    size = sum(content.size for content in pulled.fetched)
    words = [f"{files_text(len(pulled.fetched))}, {decimal(size)}"] if pulled.fetched else []
    if pulled.present > 0:
        words.append(f"{files_text(pulled.present)} {'was' if pulled.present == 1 else 'were'} here")
    return ", ".join(words) or "no files"


class Selection(NamedTuple):
    """The files to pull, the smallest first; the files over the limit; and checkpoints that were not named."""

    chosen: list[RunOutput]
    over_limit: list[RunOutput]
    checkpoints: list[RunOutput]


def select(listed: Outputs, choice: Choice, short: str) -> Selection:
    """Choose among the files of a run. Raises RunError for a name that matches none of them."""
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
    """Return the files of the file or folder that a word names. Raises RunError if none match.

    The word is a path that is relative to the working folder, or begins with `artifacts/`, `checkpoints/`,
    `home/` or `work/`.
    """
    plain = os.path.normpath(word).removeprefix("/")
    tried = [plain] if plain.split("/")[0] in TOPS else []
    for path in [*tried, "code" if plain == "." else f"code/{plain}"]:
        found = [file for file in files if file.path == path or file.path.startswith(f"{path}/")]
        if found:
            return found
    raise RunError(f"{short} wrote no {word}\n  its files   launch ls {short}")


def shown_path(path: str) -> str:
    """Return a run's path as users see it and `named_by` accepts it: relative to the working folder if it is inside."""
    top, _, rest = path.partition("/")
    return rest if top == "code" and rest.split("/")[0] not in TOPS else path


def checkpoint_of(path: str) -> str:
    """Return the path of a file's checkpoint folder, as `launch pull` accepts it."""
    parts = path.split("/")
    if parts[0] == "checkpoints":
        return "/".join(parts[:2])
    depth = next(index for index, part in enumerate(parts) if part.startswith("checkpoint-"))
    return shown_path("/".join(parts[: depth + 1]))


def by_number(folder: str) -> tuple[str, int]:
    """Return a sort key that puts `checkpoint-9` before `checkpoint-12`."""
    name = folder.rstrip("0123456789")
    return name, int(folder[len(name) :] or 0)


def within(files: Sequence[File], limit: int) -> list[File]:
    """Return the first files whose total size stays within a limit."""
    total, chosen = 0, []
    for file in files:
        total += file.size
        if total > limit:
            break
        chosen.append(file)
    return chosen


def _folding_of(folder: Path) -> Callable[[str], str]:
    """Return a function that maps two paths to the same text if a folder's disk does not distinguish them."""
    with tempfile.NamedTemporaryFile(prefix=".case-", dir=folder) as probe:
        upper = Path(probe.name).with_name(Path(probe.name).name.upper())
        is_folded = upper.exists()
    return (lambda path: unicodedata.normalize("NFC", path).casefold()) if is_folded else str
