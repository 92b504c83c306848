"""The fence: keeps an agent away from a run that another agent has continued.

If an agent is presumed dead because its machine was frozen or unreachable, another agent may continue the run
in the next numbered folder. When the first agent returns, it sees that folder, kills its training, and
records only that in its own folder.
"""

from __future__ import annotations

import time

from ..record.rundir import RecordFolder, Run

LOOK_S = 0.5


class Fence:
    """Checks whether a later folder than the agent's `folder` continues the run."""

    def __init__(self, run: Run, folder: RecordFolder) -> None:
        """Start without a look."""
        self._run = run
        self._folder = folder
        self._look_again_s = 0.0
        self._is_crossed = False

    def look(self) -> bool:
        """Look now, and return whether another agent has continued the run. No folder is removed: true stays true."""
        self._look_again_s = time.monotonic() + LOOK_S
        self._is_crossed = self._is_crossed or self._run.has_folder_after(self._folder)
        return self._is_crossed

    def is_crossed(self) -> bool:
        """Return the result of a look at most half a second old."""
        return self.look() if time.monotonic() >= self._look_again_s else self._is_crossed
