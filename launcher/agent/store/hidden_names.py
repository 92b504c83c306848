"""Names of files that contain a secret, and the names under which the client lists and downloads these files.

`model-TOKEN.pt` is `model-{secret}.pt` to the client. The host's file keeps the name that the job chose. The
run's record keeps the pairs of names, because the secrets are erased when a run ends. A sealed checkpoint is
not renamed: its files' names are part of its proof.
"""

from __future__ import annotations

import os
from typing import Dict

from ..record import secret, strict_json
from ..record.files import read_json, write_durably
from ..record.rundir import Run

HIDDEN = "{secret}"


class HiddenNames:
    """The names of one run's files as a client sees them."""

    def __init__(self, run: Run) -> None:
        """Load the recorded names, and the secrets while they exist."""
        self._file = run.hidden_names
        self._real: Dict[str, str] = {
            shown: real for shown, real in read_json(self._file).items() if isinstance(real, str)
        }
        self._shown = {real: shown for shown, real in self._real.items()}
        self._redactor = secret.Redactor(secret.read(run).values())
        self._has_news = False

    def shown(self, path: str) -> str:
        """Return the client's name of a file."""
        if path in self._shown:
            return self._shown[path]
        clean = str(self._redactor.redact(path))
        if (clean == path and HIDDEN not in path) or path.startswith("checkpoints/"):
            return path
        root, ending = os.path.splitext(clean.replace(secret.STARS, HIDDEN) if clean != path else path)
        name, number = root + ending, 2
        while name in self._real:
            name, number = "%s-%d%s" % (root, number, ending), number + 1
        self._real[name], self._shown[path] = path, name
        self._has_news = True
        return name

    def shown_folder(self, path: str) -> str:
        """Return the client's name of a folder, or of a file, from the recorded name of a file in it."""
        for real, shown in self._shown.items():
            if real == path or real.startswith(path + "/"):
                return "/".join(shown.split("/")[: path.count("/") + 1])
        return path

    def real(self, name: str) -> str:
        """Return the path of a file by the client's name."""
        return self._real.get(name, name)

    def save(self) -> None:
        """Save new names. Raises OSError."""
        if self._has_news:
            self._has_news = False
            write_durably(self._file, strict_json.encode(self._real), 0o600)
