"""Files opened through no link, for the commands of this client: the agent's own way below its runs."""

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
