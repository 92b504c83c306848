"""The first Kaggle session of a run, for a dry run: as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.base.text import hours_text
from launcher.cli.output.figures import size_text

if TYPE_CHECKING:
    from launcher.backends.base.session_preview import SessionPreview
    from launcher.cli.json_output.preview_shapes import SessionShown


def show_session(session: SessionPreview) -> None:
    """Print the machine and hours requested, the script's parts with their sizes, and the remaining quota."""
    from launcher.cli.output.wrapping import say_wrapped

    parts = session.parts
    made_of = {
        "agent": parts.agent,
        "plan and record": parts.records,
        "stub": parts.stub,
        "code and data": parts.tree,
    }
    words = [f"{what} {size_text(size)}" for what, size in made_of.items() if size is not None]
    lines = [
        f"  session    {session.title}, {hours_text(session.hours)} at most",
        f"  script     {size_text(parts.total)} of {size_text(session.most_bytes)}: {', '.join(words)}",
    ]
    if parts.tree is None:
        lines.append(
            f"  dataset    code and data, {size_text(parts.archived)} before it is packed: private, removed by launch gc"
        )
    say_wrapped(*lines, f"  hours      {session.quota}", hang=13)


def session_shape(session: SessionPreview | None) -> SessionShown | None:
    """Return a session as JSON; None without a session."""
    if session is None:
        return None
    from launcher.cli.json_output.preview_shapes import ScriptSizes, SessionShown

    sizes = ScriptSizes(most=session.most_bytes, **session.parts._asdict())
    return SessionShown(machine=session.machine, hours=session.hours, script=sizes, quota=session.quota)
