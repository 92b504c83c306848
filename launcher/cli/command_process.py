"""The process that runs a command: Ctrl-C at any moment, and a fast exit.

`main` sets SIGINT to its default action before it imports anything. A Ctrl-C during the imports thus ends the process
without a traceback, and no command has started yet.
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
"""Seconds until a lost Ctrl-C is sent again. The callback that swallowed it has returned by then."""
_GARBAGE = 200_000
"""Threshold of the garbage collector, in objects. At Python's 700, collections take a tenth of the load time."""

_exit_codes: list[int] = []
"""The exit code of the command, once it has finished."""


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback at any moment."""
    is_heard = signal.getsignal(signal.SIGINT) != signal.SIG_IGN  # a background job ignores it
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    completes = "_LAUNCH_COMPLETE" in os.environ
    if completes:  # the shell would show errors and the output of Ctrl-C in the middle of its line
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    set_threshold(_GARBAGE)
    atexit.register(_leave)  # registered first, so it runs last
    own_variables.set_own("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for plugins takes 15 ms
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
            sys.exit(_INTERRUPTED)  # pydantic wraps a KeyboardInterrupt that arrives while it builds a model
        raise
    except SystemExit as end:
        if isinstance(end.code, int):
            _exit_codes.append(end.code)
        raise
    finally:
        if is_heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave() -> None:
    """Exit at once: Python's teardown of the loaded modules takes 10 to 40 ms. Threads that matter have ended."""
    with contextlib.suppress(OSError, ValueError):  # Python itself reports a failed write
        if _exit_codes:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_exit_codes[-1])


def _not_lost(lost: sys.UnraisableHookArgs) -> None:
    """Send SIGINT again after a lost Ctrl-C: Python raised it in a callback, such as an import's, and dropped it."""
    if lost.exc_type is KeyboardInterrupt:
        start_new_thread(_interrupt_again, ())
    else:
        sys.__unraisablehook__(lost)


def _interrupt_again() -> None:
    time.sleep(_AGAIN_S)
    os.kill(os.getpid(), signal.SIGINT)
