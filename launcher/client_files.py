"""Opening files here as the agent does below its runs: through no link, regular files only, without waiting."""

from launcher.remote.record.safe_open import (
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
