"""Late seals: checkpoints by an agent that the run has left behind.

An agent may be taken for dead because its machine is frozen or unreachable. It may then seal one more
checkpoint before it sees that the run continues without it. No attempt resumes from such a checkpoint. No
clock decides: each folder records the checkpoints that were sealed before it began, so any other checkpoint
sealed by an earlier folder is late.
"""

from __future__ import annotations

import bisect
import hashlib
import os
from typing import Dict, FrozenSet, List, Optional

from ..record.files import MOST_BYTES, parse_json, paths_in
from ..record.rundir import Run
from ..record.safe_open import read_regular
from . import checkpoints


def sealed_now(run: Run) -> List[str]:
    """Return the SHA-256 of each sealed checkpoint's manifest, including one without its final name yet."""
    manifests = (_manifest(path) for path in paths_in(run.checkpoints))
    return [_digest(manifest) for manifest in manifests if manifest is not None]


def late(run: Run) -> Dict[str, str]:
    """Return the late checkpoints of a run by name, each with the reason in words."""
    found: Dict[str, str] = {}
    numbers = run.numbers()
    begun: Dict[int, Optional[FrozenSet[str]]] = {}
    for _, path in checkpoints.sealed(run.checkpoints):
        manifest = _manifest(path) or b""
        record = parse_json(manifest.decode("utf-8", "replace"))
        sealer = record.get("folder")
        if record.get("run") != run.id or not isinstance(sealer, int):
            continue
        for number in numbers[bisect.bisect_right(numbers, sealer) :]:
            if number not in begun:
                begun[number] = run.folder(number).read_sealed()
            sealed = begun[number]
            if sealed is not None:
                if _digest(manifest) not in sealed:
                    words = "attempt folder %04d sealed it after %04d had begun" % (sealer, number)
                    found[os.path.basename(path)] = words
                break
    return found


def _manifest(checkpoint: str) -> Optional[bytes]:
    """Return the bytes of a checkpoint's manifest; None if missing or the agent cannot have written it."""
    try:
        return read_regular(os.path.join(checkpoint, checkpoints.MANIFEST), MOST_BYTES)
    except OSError:
        return None


def _digest(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()
