"""The fence: keeps an agent away from a run that has gone on without it.

If an agent is thought to be dead, because its machine was frozen or out of reach, another one may go on in the next numbered
folder. When the first one is back, it sees that folder, kills its training, and writes nothing but that into its own.
"""

from __future__ import annotations

import time

from ..record.rundir import Folder, Run

LOOK_S = 0.5


class Fence:
    """Whether the run of an agent, which writes in `folder`, has gone on in a later folder."""

    def __init__(self, run: Run, folder: Folder) -> None:
        """Begin before the first look."""
        self._run = run
        self._folder = folder
        self._look_again_s = 0.0
        self._is_crossed = False

    def look(self) -> bool:
        """Look now; return whether the run has gone on. No folder goes away, so that this stays true."""
        self._look_again_s = time.monotonic() + LOOK_S
        self._is_crossed = self._is_crossed or self._run.has_folder_after(self._folder)
        return self._is_crossed

    def is_crossed(self) -> bool:
        """Return the same, from a look at most half a second ago."""
        return self.look() if time.monotonic() >= self._look_again_s else self._is_crossed
