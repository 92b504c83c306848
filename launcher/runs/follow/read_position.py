"""The last output the user has seen, for runs that a background process also follows.

Output that the background process fetches is shown at the next attach.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from launcher.copy.record_sync import News

if TYPE_CHECKING:
    from launcher.copy.mirror import LocalCopy
    from launcher.runs.follow.view import View
    from launcher.values.record import RunState

SHOWN = ".shown.json"


def shown(mirror: LocalCopy) -> dict[str, int] | None:
    """Return how many bytes of each file the user has seen; None if no other process follows, so that all was shown."""
    if not mirror.files.exists(SHOWN):
        return None
    found = mirror.files.read_json(SHOWN)
    return {name: size for name, size in found.items() if isinstance(size, int) and size >= 0}


def begin(mirror: LocalCopy) -> None:
    """Record that all output here was shown, before another process takes over. Raises OSError."""
    if not mirror.files.exists(SHOWN):
        _write(mirror, mirror.record.sizes())


def note(mirror: LocalCopy) -> None:
    """Record that all output read so far was shown, if another process follows the run too.

    Raises OSError.
    """
    if mirror.files.exists(SHOWN):
        _write(mirror, mirror.sync.read_sizes())


def show_rest(mirror: LocalCopy, state: RunState, view: View) -> None:
    """Show the unseen output that another process fetched of an ended run. Raises RunError."""
    before = shown(mirror)
    if before is not None:
        view.begin(mirror.run, mirror.record.plan(), mirror.sync.load(before))
        show_more(mirror, state, view)


def show_more(mirror: LocalCopy, state: RunState, view: View) -> None:
    """Show the output that another process fetched of an ended run since it was read here.

    Raises RunError.
    """
    view.news(News(state, *mirror.sync.catch_up(), is_all=True))
    with contextlib.suppress(OSError):  # the output is shown again
        note(mirror)


def _write(mirror: LocalCopy, sizes: dict[str, int]) -> None:
    mirror.files.write(SHOWN, f"{json.dumps(sizes)}\n".encode())
