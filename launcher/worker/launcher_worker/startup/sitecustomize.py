"""The start-up hook: Python imports this module first in every process of a training.

Its folder is the first of PYTHONPATH. The hook does this, in order:

1. It answers two signals of the agent. One requests the stacks of all threads. The other, once the main
thread has ended, stops the wait for the other threads. LAUNCH_STACKS names the file for the stacks. The agent
signals only a process that has this file open, so without the variable no handler is installed.
2. It waits for the import of a library that one of its parts handles, and passes that library to the part.
LAUNCH_HOOK names the active parts. In a process that imports no such library, it does nothing more.
3. It imports the `sitecustomize` that Python would have found without this one.

A training may start an older Python for another task, so the syntax is that of Python 3.6. The hook imports
only modules that Python has already loaded: it takes less than a millisecond.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Sequence

STACKS, LEAVE, LEAVE_FAILED = 44, 45, 46
MIN_DESCRIPTOR = 100  # a script may use or close lower descriptors
STACKS_FILE = []  # type: list[Any]
"""The descriptor of the file for stacks and the file's status; empty without one."""
PARTS = (
    ("rehearse", "torch", "rehearsal.imitation.imitate"),
    ("adapt", "torch", "adaptation.loops.adapt_torch"),
    ("adapt", "transformers.modeling_utils", "adaptation.adapted_models.adapt_loading"),
    ("adapt", "transformers.training_args", "adaptation.trainers.adapt_arguments"),
    ("adapt", "transformers.trainer", "adaptation.trainers.adapt_trainer"),
    ("adapt", "accelerate.accelerator", "adaptation.accelerators.adapt_accelerator"),
    ("resume", "transformers.trainer", "own_resume.resume_trainer"),
    ("observe", "torch", "precision.precision_watch.watch_torch"),
    ("observe", "transformers.trainer", "observer.observe_trainer"),
)
"""Name of a part, the module that it handles, and the function of `launcher_worker` that gets this module.

The function is called once the module is imported. Functions for the same module are called in this order.
"""


def answer_agent() -> None:
    """Let the agent request the stacks of all threads; the signal exists on Linux only."""
    if "LAUNCH_STACKS" not in os.environ:
        return
    try:
        import faulthandler
        import fcntl

        low = os.open(os.environ["LAUNCH_STACKS"], os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            stacks = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, MIN_DESCRIPTOR)
        finally:
            os.close(low)
        faulthandler.register(STACKS, file=stacks, all_threads=True)
        STACKS_FILE[:] = [stacks, os.fstat(stacks)]
    except Exception:  # noqa: BLE001, S110 - whatever fails in the hook, the training continues
        pass


def watch_end(threading: "Any") -> None:
    """Handle a signal after the main thread's end, while Python waits for threads and calls exit functions.

    The handler shows the agent that the main thread has ended. The number of the handled signal shows whether
    an uncaught exception ended it. The signal interrupts the wait: the process then ends with its own exit
    status.
    """
    wait = threading._shutdown  # noqa: SLF001 - Python calls it first when the main thread has ended

    def leave(*_: object) -> None:
        raise LeaveError

    def wait_for_threads() -> None:
        try:
            __import__("_signal").signal(  # built in; `signal` would load more
                LEAVE_FAILED if hasattr(sys, "last_type") else LEAVE, leave
            )
            _tell_end()
        except Exception:  # noqa: BLE001, S110 - as above; also for a forked thread
            pass
        try:
            wait()
        except LeaveError:
            pass

    threading._shutdown = wait_for_threads  # noqa: SLF001


def _tell_end() -> None:
    """Report that the main thread has ended, unless the script has closed or reused the file's descriptor."""
    if STACKS_FILE and os.path.samestat(os.fstat(STACKS_FILE[0]), STACKS_FILE[1]):
        os.write(STACKS_FILE[0], b"launch: the main thread of %d has ended\n" % os.getpid())


class LeaveError(KeyboardInterrupt):
    """Raised at the agent's signal after the main thread's end.

    Exit functions handle its base class as a Ctrl-C.
    """


class ImportWatch:
    """A finder that passes each watched module to the parts of the hook once it is imported; other finders find it."""

    def __init__(self, parts: "Sequence[str]") -> None:
        self.functions: "dict[str, list[Any]]" = {"threading": [watch_end]}
        for part, module, function in PARTS:
            if part in parts:
                self.functions.setdefault(module, []).append(function)

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec that the other finders find for a watched module; None for every other module."""
        if name not in self.functions:
            return None
        begin = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0
        for finder in sys.meta_path[begin:]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _call_after_import(self.functions[name], spec)
                return spec
        return None


def _call_after_import(functions: "Sequence[Any]", spec: "ModuleSpec") -> None:
    """Make a module's loader call functions after it has executed the module.

    The loader is restored first.
    """
    loader: Any = spec.loader

    def exec_module(module: "ModuleType") -> None:
        vars(loader).pop("exec_module", None)
        execute(module)
        for function in functions:
            _call(function, module)

    # Python leaves frames of importlib out of tracebacks, so the traceback of a failing module looks as
    # usual.
    code = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    exec_module.__code__ = code
    try:
        execute = loader.exec_module
        loader.exec_module = exec_module
    except (AttributeError, TypeError):
        return  # this loader cannot be changed: its module is not watched


def _call(function: "Any", module: "ModuleType") -> None:
    try:
        if callable(function):
            function(module)
            return
        name, _, attribute = function.rpartition(".")
        part = __import__("launcher_worker." + name, fromlist=[attribute])
        getattr(part, attribute)(module)
    except Exception:  # noqa: BLE001, S110 - whatever fails in the hook, the training continues
        pass


def _import_next() -> None:
    """Import the next `sitecustomize`, as if this one were missing; `site` handles its errors."""
    folder = os.path.dirname(__file__)
    if folder in sys.path:
        sys.path.remove(folder)
        del sys.modules["sitecustomize"]
        __import__("sitecustomize")


if sys.version_info >= (3, 8) and "LAUNCH_HOOK" in os.environ:
    answer_agent()
    if "threading" in sys.modules:
        _call(watch_end, sys.modules["threading"])
    sys.meta_path.insert(0, ImportWatch(os.environ["LAUNCH_HOOK"].split()))
_import_next()
