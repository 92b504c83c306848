"""Start a run from the terminal, then follow it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from launcher.cli.signals import Terminated

if TYPE_CHECKING:
    from launcher.runs.follow.view import View
    from launcher.runs.launch.launching import Started


def start_and_follow(start: Callable[[], Started], view: View, *, detach: bool) -> None:
    """Start a run, then follow it to its end or detach. A Ctrl-C before the run begins leaves no run behind."""
    try:
        started = start()
    except (KeyboardInterrupt, Terminated) as error:
        view.note("interrupted before the run began; files already sent are kept for the next launch")
        raise typer.Exit(Terminated.exit_code if isinstance(error, Terminated) else 130) from None
    from launcher.cli.follow.follow import detached, follow_to_end

    local_copy, lease = started.local_copy, started.lease
    signal_number = started.interrupts.release()
    if detach or signal_number is not None:
        started.client.close()
        if lease is not None:
            from launcher.rental.lease.release import hand_off  # few runs are on a rented machine

            hand_off(lease, view)
        view.note(detached(local_copy))
        view.started(local_copy.run, started.job_id, is_asked=detach)
        raise typer.Exit(Terminated.exit_code if signal_number == signal.SIGTERM else 0)
    follow_to_end(started.host, local_copy, view, started.client, lease)
