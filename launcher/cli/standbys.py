"""What a command leaves for the next ones of its terminal: a process that stands by for them (`standing_by.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import NamedTuple

from launcher import user_sockets
from launcher.cli import handing_over
from launcher.hosts import background, held_socket, ssh_lookup

LEAST_AGE_S = 10.0
"""How old one has to be to be replaced: commands that differ each time would start one each time."""
_PROGRAM = "from launcher.cli.standing_by import main; main()"


class Order(NamedTuple):
    """For which session a process stands by, for how many seconds without a command, and what it prepares: modules, and what ssh is asked."""

    session: int
    hold_s: int
    modules: list[str]
    questions: list[ssh_lookup.Question]


def leave(hold_s: int) -> None:
    """Let a process stand by for this session's next commands, if none does, or the one that does would not have this one.

    It loads what this command has loaded, and has its limits, rights and variables: the next commands are most like this one.

    A command that is the first process of its session leaves none: the session ends with it.
    """
    session = os.getsid(0)
    path = user_sockets.standby(session)
    is_short = len(os.fsencode(path)) <= held_socket.MOST_PATH
    if handing_over.is_refused:
        with contextlib.suppress(FileNotFoundError):
            if not 0 <= time.time() - os.stat(path).st_mtime <= LEAST_AGE_S:  # or the clock was set back
                os.unlink(path)  # its process ends then
    if user_sockets.KNOWS_PEERS and session != os.getpid() and is_short and not os.path.exists(path):
        order = Order(session, hold_s, [*sys.modules], ssh_lookup.questions())
        background.begin(_PROGRAM, "", json.dumps(order._asdict()).encode(), {})
