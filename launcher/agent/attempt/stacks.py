"""The file to which the Pythons of an attempt write the stacks of their threads when the agent asks.

The start-up hook and the worker open it and keep it open; child programs do not inherit the descriptor. So a
process that has the file open is a Python that handles the agent's signals: the open file proves that a
signal is safe.
"""

from __future__ import annotations

import os
import re
import time
from typing import Dict

from ..record.safe_open import open_regular
from ..system import process

STACKS_SIGNAL = 44
"""The signal that asks a Python for its stacks. The start-up hook and the worker have faulthandler handle it."""
MAX_BYTES = 1 << 20
"""The most bytes of stacks that are read at once."""
_END = re.compile(rb"launch: the main thread of ([0-9]+) has ended\n")


class Stacks:
    """The stacks file of an attempt, or of its part on a node."""

    def __init__(self, path: str) -> None:
        """Create the file, or open it. Raises OSError."""
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._name = os.path.basename(path)
        self._offset = 0
        self.ends_s: Dict[int, float] = {}
        """When the message that a process's main thread has ended was read, by pid and the monotonic clock."""

    def take(self) -> bytes:
        """Return the bytes written since the last call, without the messages that a main thread has ended."""
        piece = os.pread(self._descriptor, MAX_BYTES, self._offset)
        self._offset += len(piece)
        self.ends_s.update((int(pid), time.monotonic()) for pid in _END.findall(piece))
        return _END.sub(b"", piece)

    def is_answered_by(self, pid: int, number: int) -> bool:
        """Whether a process handles a signal and has the file open, as hook and worker do.

        Always false outside Linux.
        """
        return process.catches(pid, number) and self._is_open_in(pid)

    def _is_open_in(self, pid: int) -> bool:
        folder = "/proc/%d/fd" % pid
        try:
            return any(self._is_at("%s/%s" % (folder, name)) for name in os.listdir(folder))
        except OSError:  # it has ended, or belongs to another user
            return False

    def _is_at(self, link: str) -> bool:
        """Whether a descriptor leads to the file.

        Other files are not examined, because their disk may not answer.
        """
        try:
            if os.path.basename(os.readlink(link)) != self._name:
                return False
            return os.path.samestat(os.stat(link), os.fstat(self._descriptor))
        except OSError:  # closed just now
            return False
