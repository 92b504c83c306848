"""Names of files that hold a secret: by which other name the client lists, gets and keeps such a file.

`model-TOKEN.pt` is `model-{secret}.pt` to the client. The host's file keeps its name, as the job chose it. Which name stands for
which is noted in the run's record, for the secrets are erased when a run ends. A sealed checkpoint is left as it is: the names of
its files are part of what proves it.
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
        """Load what is noted, and the secrets as long as they are here."""
        self._file = run.hidden_names
        self._real: Dict[str, str] = {
            shown: real for shown, real in read_json(self._file).items() if isinstance(real, str)
        }
        self._shown = {real: shown for shown, real in self._real.items()}
        self._redactor = secret.Redactor(secret.read(run).values())
        self._has_news = False

    def shown(self, path: str) -> str:
        """Return the name of a file for a client."""
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

    def real(self, name: str) -> str:
        """Return the path of a file by the name that a client has for it."""
        return self._real.get(name, name)

    def save(self) -> None:
        """Note what is new. Raises OSError."""
        if self._has_news:
            self._has_news = False
            write_durably(self._file, strict_json.encode(self._real), 0o600)
