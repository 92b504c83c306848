"""Consent to send this user's secrets to a host, if only that host's plan requests them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.errors import RefusedError

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.runs.follow.view import View


def check_consent(names: Sequence[str], local_copy: LocalCopy, host: str, view: View, verb: str) -> None:
    """Ask whether to send this user's variables to a host that sent the run's plan, unless this client made the plan.

    Raises RefusedError without consent, or without a terminal.
    """
    if local_copy.has_own_plan or not names:
        return
    words = f"{local_copy.run} was not launched from here; its plan, as {host} sent it, asks for your {', '.join(names)}"
    answer = view.agrees(words)
    if answer is None:
        raise RefusedError(
            f"{words}\n  to send them   launch {verb} --yes {local_copy.short}     the plan is in   {local_copy.folder}/plan.json"
        )
    if not answer:
        raise RefusedError("nothing was sent: you answered no")
