"""The fence: keeps an agent away from a run that another agent has continued.

If an agent is presumed dead because its machine was frozen or unreachable, another agent may continue the run
in the next numbered folder. When the first agent returns, it sees that folder and kills its training. To
its own folder it adds only the record of this end.
"""

from __future__ import annotations

import time

from ..record.rundir import RecordFolder, Run

LOOK_S = 0.5


class Fence:
    """Checks whether a later folder than the agent's `folder` continues the run."""

    def __init__(self, run: Run, folder: RecordFolder) -> None:
        """Store the folder; look at nothing yet."""
        self._run = run
        self._folder = folder
        self._look_again_s = 0.0
        self._is_crossed = False

    def look(self) -> bool:
        """Look now, and return whether another agent has continued the run.

        Folders are never removed, so once true, the result stays true.
        """
        self._look_again_s = time.monotonic() + LOOK_S
        self._is_crossed = self._is_crossed or self._run.has_folder_after(self._folder)
        return self._is_crossed

    def is_crossed(self) -> bool:
        """Return the result of a look that is at most half a second old."""
        return self.look() if time.monotonic() >= self._look_again_s else self._is_crossed
