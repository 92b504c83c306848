"""Open files without following links, and lock them, for this client's commands. The functions are the agent's.

A lock ends with its holder, even if it is killed.
"""

from launcher.agent.record.locks import Lock, is_locked
from launcher.agent.record.safe_open import (
    RunPath,
    UnreadableError,
    open_folder,
    open_regular,
    opened_folder,
    parent_of,
    read_regular,
    status_of,
)

__all__ = [
    "Lock",
    "RunPath",
    "UnreadableError",
    "is_locked",
    "open_folder",
    "open_regular",
    "opened_folder",
    "parent_of",
    "read_regular",
    "status_of",
]
