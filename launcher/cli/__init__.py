"""The command line: one file per verb, with its arguments and its output.

`main` loads nothing before Ctrl-C is quiet: what is interrupted while it loads has done nothing yet.
"""

from __future__ import annotations

import os
import signal
import sys
from gc import freeze, set_threshold  # `gc` is a verb here
from types import ModuleType

_INTERRUPTED = 128 + signal.SIGINT
_GARBAGE = 200_000
"""Objects between two collections: at Python's 700 they are a tenth of the time in which the command line loads."""

_NO_PLUGINS = ModuleType("pydantic.plugin._loader")
"""Stands for the module by which pydantic looks for plugins in every package that is installed, which takes 15 ms. We use none."""
vars(_NO_PLUGINS)["get_plugins"] = tuple


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback at any moment."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a background job ignores it
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    completes = "_LAUNCH_COMPLETE" in os.environ
    if completes:  # a shell would show errors in the middle of the line, and what Ctrl-C prints
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    set_threshold(_GARBAGE)
    sys.modules["pydantic.plugin._loader"] = _NO_PLUGINS
    if not completes:
        from launcher.cli import early

        early.begin(sys.argv[1:])
    from launcher.cli import app

    try:
        if is_heard and not completes:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app.main()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        if is_heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        freeze()  # Python would look for cycles once more in all that is there: 30 ms before the process is gone
