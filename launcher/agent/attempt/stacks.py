"""The file to which the Pythons of an attempt write what the agent asks of them: the stacks of their threads.

The start-up hook and the worker open it, and keep it open at a descriptor that no program inherits that they start. So a
process that has it open is a Python that answers our signals: the file is the proof that such a signal means ours there.
"""

from __future__ import annotations

import os
import re
import time
from typing import Dict

from ..record.safe_open import open_regular
from ..system import process

STACKS_SIGNAL = 44
"""The signal that asks a Python for its stacks, which the start-up hook and the worker have faulthandler handle."""
MOST_BYTES = 1 << 20
"""So much of what processes have written is taken at once."""
_END = re.compile(rb"launch: the main thread of ([0-9]+) has ended\n")


class Stacks:
    """The file of an attempt, or of its part on a node."""

    def __init__(self, path: str) -> None:
        """Make the file, or open it. Raises OSError."""
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._name = os.path.basename(path)
        self._offset = 0
        self.ends_s: Dict[int, float] = {}
        """When it was read that the main thread of a process has ended, by the monotonic clock."""

    def take(self) -> bytes:
        """Return what was written since the last call, without the lines that say that a main thread has ended."""
        piece = os.pread(self._descriptor, MOST_BYTES, self._offset)
        self._offset += len(piece)
        self.ends_s.update((int(pid), time.monotonic()) for pid in _END.findall(piece))
        return _END.sub(b"", piece)

    def is_answered_by(self, pid: int, number: int) -> bool:
        """Whether a process handles a signal and has the file open, as the hook and the worker do. False except on Linux."""
        return process.catches(pid, number) and self._is_open_in(pid)

    def _is_open_in(self, pid: int) -> bool:
        folder = "/proc/%d/fd" % pid
        try:
            return any(self._is_at("%s/%s" % (folder, name)) for name in os.listdir(folder))
        except OSError:  # it has ended, or is another user's
            return False

    def _is_at(self, link: str) -> bool:
        """Whether a process's descriptor leads to the file; no other file is asked for, as its disk may not answer."""
        try:
            if os.path.basename(os.readlink(link)) != self._name:
                return False
            return os.path.samestat(os.stat(link), os.fstat(self._descriptor))
        except OSError:  # closed just now
            return False
