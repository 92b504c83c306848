"""The checkpoints of a run in its local copy, for use when its host does not answer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.base.client_files import UnreadableError
from launcher.copy.local_copy import LocalCopy
from launcher.copy.run_files import MAX_JSON
from launcher.runs.pull.checkpoint_pulling import LocalCheckpoint
from launcher.runs.pull.local_copies import LocalCopies
from launcher.values.reported.answers import RejectedCheckpoint
from launcher.values.reported.checkpoint import MANIFEST, SealedCheckpoint, sealed_checkpoint


class Here(NamedTuple):
    """The newest whole local checkpoint, None without one, and the newer ones with their faults."""

    newest: LocalCheckpoint | None
    passed_over: list[RejectedCheckpoint]


def newest_whole(local_copy: LocalCopy) -> Here:
    """Return the newest local checkpoint from which the run can continue. All its files are read.

    Its manifest must have come from the host, and its files must match the manifest. A checkpoint from after
    the first bad step of a failure does not count.
    """
    copies, bad_steps = LocalCopies(local_copy), _bad_steps(local_copy)
    passed_over = []
    records = {
        name: local_copy.files.read_json(f"checkpoints/{name}/{MANIFEST}") for name in _named(local_copy)
    }
    for name in sorted(records, key=lambda name: _step(records[name]), reverse=True):
        try:
            sealed = _read(local_copy, name)
            wrong = _what_is_wrong(sealed, copies) or _spoilt(records[name], sealed.step, bad_steps)
        except (OSError, ValueError) as error:
            wrong = error.words if isinstance(error, UnreadableError) else str(error).splitlines()[0]
            passed_over.append(RejectedCheckpoint(checkpoint=name, wrong=wrong))
            continue
        if wrong is None:
            present = len(sealed.contents)
            return Here(LocalCheckpoint(sealed, local_copy.checkpoints / name, [], present, []), passed_over)
        passed_over.append(RejectedCheckpoint(checkpoint=name, wrong=wrong))
    return Here(None, passed_over)


def resumes(local_copy: LocalCopy) -> bool:
    """Return whether the script has taken its checkpoint from the worker, according to the fetched record."""
    consumed: set[Any] = set()
    for number in local_copy.files.numbered():
        consumed.update(_list(local_copy.files.read_json(f"{number}/state.json").get("consumed")))
    return "resume" in consumed and "held resume" not in consumed


def _list(value: object) -> list[Any]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _named(local_copy: LocalCopy) -> list[str]:
    """Return the names of the checkpoint folders that have a manifest."""
    names = local_copy.files.names("checkpoints")
    return [
        one for one in names if one[0] != "." and local_copy.files.exists(f"checkpoints/{one}/{MANIFEST}")
    ]


def _step(manifest: Mapping[str, Any]) -> float:
    step = manifest.get("step")
    return step if isinstance(step, int) else -math.inf


def _read(local_copy: LocalCopy, name: str) -> SealedCheckpoint:
    manifest = local_copy.files.read(f"checkpoints/{name}/{MANIFEST}", MAX_JSON)
    return sealed_checkpoint(name, manifest, hashlib.sha256(manifest).hexdigest(), {})


def _what_is_wrong(sealed: SealedCheckpoint, copies: LocalCopies) -> str | None:
    *files, manifest = sealed.contents
    if not copies.came(manifest.path, manifest.sha256):
        return "its manifest is not one that its host sent"
    for content in files:
        if copies.read(content.path, lambda _count: None) != content.sha256:
            return f"{content.path.split('/', 2)[2]} is not as its manifest says"
    return None


def _bad_steps(local_copy: LocalCopy) -> list[tuple[int, int]]:
    """Return (number of the folder, first bad step) of each failure that spoilt checkpoints."""
    found = []
    for number in local_copy.files.numbered():
        failure = local_copy.files.read_json(f"{number}/state.json").get("failure")
        since = failure.get("since") if isinstance(failure, dict) else None
        if isinstance(since, int):
            found.append((int(number), since))
    return found


def _spoilt(manifest: Mapping[str, Any], step: int, bad_steps: list[tuple[int, int]]) -> str | None:
    """Return the fault of a checkpoint that a failure has spoilt; None if no failure did."""
    sealer = manifest.get("folder")
    for number, since in bad_steps:
        if step >= since and not (isinstance(sealer, int) and sealer > number):
            return f"attempt folder {number:04d} failed with bad steps from {since} on"
    return None
