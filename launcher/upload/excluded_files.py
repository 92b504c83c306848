"""The files that a launch did not send, stored with the local copy.

They explain a file missing on the host.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from launcher.copy.run_files import RunFiles
from launcher.values.upload_selection import ExcludedPath, ExclusionReason, UploadSelection

NAME = "not-sent.json"
MAX_PATHS = 10_000
_CLASSES = ("user-code-error", "unknown", "missing-dependency")
_QUOTED = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|`([^`\n]+)`")
_IN_CODE = re.compile(r"^.*/runs/[^/]+/(?:work/)?code/")


def remember(files: RunFiles, selection: UploadSelection) -> None:
    """Write the list of excluded files to a run's folder, unless it is empty. Raises OSError."""
    left_out = [
        [entry.path, entry.why.value] for entry in selection.left_out[:MAX_PATHS] if entry.key is None
    ]
    if left_out:
        files.write(NAME, json.dumps({"version": 1, "left_out": left_out}).encode())


def explained(files: RunFiles, evidence: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a failure's evidence, with a better message if its line names a file that was not sent."""
    if evidence.get("class") not in _CLASSES:
        return evidence
    for entry in _entries(files.read_json(NAME)):
        if any(_is_of(entry.path, path) for path in _paths(str(evidence.get("line") or ""))):
            return {**evidence, **_words(entry)}
    return evidence


def _entries(record: Mapping[str, Any]) -> list[ExcludedPath]:
    pairs = record.get("left_out")
    if not isinstance(pairs, list):
        return []
    known = set(map(str, ExclusionReason))
    return [ExcludedPath(str(path), ExclusionReason(why)) for path, why in pairs if why in known]


def _paths(line: str) -> list[str]:
    """Return the paths that a line quotes, relative to the code folder."""
    quoted = (next(filter(None, found.groups())) for found in _QUOTED.finditer(line))
    return [posixpath.normpath(_IN_CODE.sub("", path)) for path in quoted]


def _is_of(left_out: str, path: str) -> bool:
    return path == left_out.rstrip("/") or (left_out.endswith("/") and path.startswith(left_out))


def _words(entry: ExcludedPath) -> dict[str, str]:
    mend = f"add this line to .launchignore   !{entry.path}"
    if entry.path.rpartition("/")[2].startswith(".env"):
        mend = f"pass its variables as secrets   launch --env-file {entry.path}"
    elif entry.why.is_surprising:
        mend = "put the file itself into the folder"
    return {"why": f"'{entry.path}' was not sent: {entry.why.value}", "mend": mend}
