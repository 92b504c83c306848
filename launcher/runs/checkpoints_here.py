"""The checkpoints of a run that are in its mirror, for when its host does not answer."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

from launcher.runs.checkpoint_pulling import HomeCheckpoint
from launcher.runs.json_file import read_json
from launcher.runs.local_copies import LocalCopies
from launcher.runs.mirror import Mirror
from launcher.values.answers import PassedOver
from launcher.values.checkpoint import MANIFEST, SealedCheckpoint, sealed_checkpoint


class Here(NamedTuple):
    """The newest whole checkpoint that is here, None without one, and the newer ones with what is wrong."""

    newest: HomeCheckpoint | None
    passed_over: list[PassedOver]


def newest_whole(mirror: Mirror) -> Here:
    """Return the newest checkpoint in a mirror from which its run can go on. Every file of it is read.

    Its manifest must be one that came from the host, and its files what the manifest says. One from after the first bad
    step of a failure does not count.
    """
    copies, bad_steps = LocalCopies(mirror), _bad_steps(mirror)
    passed_over = []
    for path in sorted(mirror.checkpoints.glob(f"[!.]*/{MANIFEST}"), key=_step, reverse=True):
        name = path.parent.name
        try:
            sealed = _read(path)
            wrong = _what_is_wrong(sealed, copies) or _spoilt(path, sealed.step, bad_steps)
        except (OSError, ValueError) as error:
            passed_over.append(PassedOver(checkpoint=name, wrong=str(error).splitlines()[0]))
            continue
        if wrong is None:
            present = len(sealed.contents)
            return Here(HomeCheckpoint(sealed, path.parent, [], present, []), passed_over)
        passed_over.append(PassedOver(checkpoint=name, wrong=wrong))
    return Here(None, passed_over)


def resumes(mirror: Mirror) -> bool:
    """Whether the script has taken its checkpoint from the worker, by what has been fetched of the run."""
    consumed: set[Any] = set()
    for path in mirror.folder.glob("[0-9]*/state.json"):
        consumed.update(_list(read_json(path).get("consumed")))
    return "resume" in consumed and "held resume" not in consumed


def _list(value: object) -> list[Any]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _step(manifest: Path) -> float:
    step = read_json(manifest).get("step")
    return step if isinstance(step, int) else -math.inf


def _read(path: Path) -> SealedCheckpoint:
    manifest = path.read_bytes()
    return sealed_checkpoint(path.parent.name, manifest, hashlib.sha256(manifest).hexdigest(), {})


def _what_is_wrong(sealed: SealedCheckpoint, copies: LocalCopies) -> str | None:
    *files, manifest = sealed.contents
    if not copies.came(manifest.path, manifest.sha256):
        return "its manifest is not one that its host sent"
    for content in files:
        if copies.read(content.path, lambda _count: None) != content.sha256:
            return f"{content.path.split('/', 2)[2]} is not as its manifest says"
    return None


def _bad_steps(mirror: Mirror) -> list[tuple[int, int]]:
    """Return (number of the folder, first bad step) of each failure that spoilt checkpoints."""
    found = []
    for path in mirror.folder.glob("[0-9]*/state.json"):
        failure = read_json(path).get("failure")
        since = failure.get("since") if isinstance(failure, dict) else None
        if isinstance(since, int) and path.parent.name.isdecimal():
            found.append((int(path.parent.name), since))
    return found


def _spoilt(manifest: Path, step: int, bad_steps: list[tuple[int, int]]) -> str | None:
    """Say from which step on a failure has spoilt the run, if that was before a checkpoint that it then had."""
    sealer = read_json(manifest).get("folder")
    for number, since in bad_steps:
        if step >= since and not (isinstance(sealer, int) and sealer > number):
            return f"attempt folder {number:04d} failed with bad steps from {since} on"
    return None
