"""Open files without following links, for this client's commands. The functions are the agent's."""

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
    "RunPath",
    "UnreadableError",
    "open_folder",
    "open_regular",
    "opened_folder",
    "parent_of",
    "read_regular",
    "status_of",
]
