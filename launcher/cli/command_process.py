"""The process that runs a command: how Ctrl-C ends it at any moment, and how it leaves.

`main` loads nothing before Ctrl-C is quiet: what is interrupted while it loads has done nothing yet.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import time
from _thread import start_new_thread
from gc import set_threshold  # `gc` is a verb here

from launcher.base import own_variables

_INTERRUPTED = 128 + signal.SIGINT
_AGAIN_S = 0.02
"""How long after a Ctrl-C that was lost it comes once more: the callback that lost it has ended then."""
_GARBAGE = 200_000
"""Objects between two collections: at Python's 700 they are a tenth of the time in which the command line loads."""

_exit_codes: list[int] = []
"""The exit code of a command that has done all that it had to do."""


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback at any moment."""
    is_heard = signal.getsignal(signal.SIGINT) != signal.SIG_IGN  # a background job ignores it
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    completes = "_LAUNCH_COMPLETE" in os.environ
    if completes:  # a shell would show errors in the middle of the line, and what Ctrl-C prints
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    set_threshold(_GARBAGE)
    atexit.register(_leave)  # the first that is registered: it is called last
    own_variables.set_own("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for some takes 15 ms
    from launcher.cli.app import main as run_verb

    try:
        if is_heard and not completes:
            sys.unraisablehook = _not_lost
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_verb()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except Exception as error:
        if type(error).__name__ == "SchemaError" and KeyboardInterrupt.__name__ in str(error):
            sys.exit(_INTERRUPTED)  # it came while pydantic built a model, which wraps it
        raise
    except SystemExit as end:
        if isinstance(end.code, int):
            _exit_codes.append(end.code)
        raise
    finally:
        if is_heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave() -> None:
    """End the process now: Python would first take apart all that is loaded, for 10 to 40 ms. Threads that matter have ended."""
    with contextlib.suppress(OSError, ValueError):  # Python reports what cannot be written
        if _exit_codes:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_exit_codes[-1])


def _not_lost(lost: sys.UnraisableHookArgs) -> None:
    """Have a Ctrl-C come once more that Python lost: it came in a callback, as an import has, out of which nothing is raised."""
    if lost.exc_type is KeyboardInterrupt:
        start_new_thread(_interrupt_again, ())
    else:
        sys.__unraisablehook__(lost)


def _interrupt_again() -> None:
    time.sleep(_AGAIN_S)
    os.kill(os.getpid(), signal.SIGINT)
