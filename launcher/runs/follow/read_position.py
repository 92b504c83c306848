"""The last output the user has seen, for runs that a background process also follows.

Output that the background process fetches is shown at the next attach.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from launcher.copy.record_sync import News

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.runs.follow.view import View
    from launcher.values.record import RunState

SHOWN = ".shown.json"


def shown(local_copy: LocalCopy) -> dict[str, int] | None:
    """Return how many bytes of each file the user has seen; None if no other process follows, so that all was shown."""
    if not local_copy.files.exists(SHOWN):
        return None
    found = local_copy.files.read_json(SHOWN)
    return {name: size for name, size in found.items() if isinstance(size, int) and size >= 0}


def begin(local_copy: LocalCopy) -> None:
    """Record that all output in the local copy was shown, before another process takes over. Raises OSError."""
    if not local_copy.files.exists(SHOWN):
        _write(local_copy, local_copy.record.sizes())


def note(local_copy: LocalCopy) -> None:
    """Record that all output read so far was shown, if another process follows the run too.

    Raises OSError.
    """
    if local_copy.files.exists(SHOWN):
        _write(local_copy, local_copy.sync.read_sizes())


def show_rest(local_copy: LocalCopy, state: RunState, view: View) -> None:
    """Begin to show an ended run, and show the unseen output that another process fetched. Raises RunError."""
    before = shown(local_copy)
    view.begin(local_copy.run, local_copy.record.plan(), local_copy.sync.load(before))
    if before is not None:
        show_more(local_copy, state, view)


def show_more(local_copy: LocalCopy, state: RunState, view: View) -> None:
    """Show an ended run's output that another process has fetched since this process read it.

    Raises RunError.
    """
    view.news(News(state, *local_copy.sync.catch_up(), is_all=True))
    with contextlib.suppress(OSError):  # without the note the output is shown again
        note(local_copy)


def _write(local_copy: LocalCopy, sizes: dict[str, int]) -> None:
    local_copy.files.write(SHOWN, f"{json.dumps(sizes)}\n".encode())
