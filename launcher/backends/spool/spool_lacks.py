"""The commands that a spool does not support, because nothing connects into a running session."""

from launcher.errors import Lack

SPOOL_LACKS = {
    "exec": Lack(
        "no connection leads into a session while it runs",
        "its output   launch logs {run}     its files, once the session is over   launch ls {run}",
    ),
    "shell": Lack(
        "no connection leads into a session while it runs",
        "its output   launch logs {run}     its files, once the session is over   launch ls {run}",
    ),
    "forward": Lack(
        "no port of a session can be reached from outside",
        "its curves   launch plot {run}     its measurements   launch metrics {run}",
    ),
}
