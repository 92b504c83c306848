"""The start-up hook: Python imports this module first in every process of a training.

Its folder is the first of PYTHONPATH. It has the process answer two signals of the agent: one asks for the stacks of all
threads, and one, once the main thread has ended, to wait for the other threads no longer. LAUNCH_STACKS names the file that
gets the stacks. The agent signals only a process that has it open: without it, nothing is answered. Then it waits for the import of a library that one of its parts is about, and hands
that library to the part. LAUNCH_HOOK names the parts that are on. In a process that imports no such library it does
nothing else. Then it imports the `sitecustomize` that Python would have found without it.

A training may start an older Python for something else, so the syntax is that of Python 3.6. Nothing is imported that
Python has not loaded by now: it takes less than a millisecond.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Sequence

STACKS, LEAVE, LEAVE_FAILED = 44, 45, 46
LEAST_DESCRIPTOR = 100  # a script may give the first ones a meaning, or close them
STACKS_FILE = []  # type: list[Any]
"""The descriptor of the file for stacks and the file's status; empty without one."""
PARTS = (
    ("rehearse", "torch", "rehearsal.imitation.imitate"),
    ("adapt", "torch", "adaptation.loops.adapt_torch"),
    ("adapt", "transformers.modeling_utils", "adaptation.adapted_models.adapt_loading"),
    ("adapt", "transformers.training_args", "adaptation.trainers.adapt_arguments"),
    ("adapt", "transformers.trainer", "adaptation.trainers.adapt_trainer"),
    ("adapt", "accelerate.accelerator", "adaptation.accelerators.adapt_accelerator"),
    ("observe", "torch", "precision_watch.watch_torch"),
    ("observe", "transformers.trainer", "observer.observe_trainer"),
)
"""A part's name, the module it is about, and the function of `launcher_worker` that gets the module once it is imported.

Where several are about one module they are called in this order.
"""


def answer_agent() -> None:
    """Let the agent ask for the stacks of all threads; only Linux has the signal."""
    if "LAUNCH_STACKS" not in os.environ:
        return
    try:
        import faulthandler
        import fcntl

        low = os.open(os.environ["LAUNCH_STACKS"], os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            stacks = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, LEAST_DESCRIPTOR)
        finally:
            os.close(low)
        faulthandler.register(STACKS, file=stacks, all_threads=True)
        STACKS_FILE[:] = [stacks, os.fstat(stacks)]
    except Exception:  # noqa: BLE001, S110 - whatever is wrong with the hook, the training goes on
        pass


def watch_end(threading: "Any") -> None:
    """Handle a signal once the main thread has ended, while Python waits for other threads and calls functions at exit.

    That it is handled shows the agent that the main thread has ended, and which signal whether by an exception that nobody
    caught. It interrupts the waiting: the process then ends with its own exit status.
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
        except Exception:  # noqa: BLE001, S110 - as above, and of a thread that was forked
            pass
        try:
            wait()
        except LeaveError:
            pass

    threading._shutdown = wait_for_threads  # noqa: SLF001


def _tell_end() -> None:
    """Write that the main thread has ended, if the descriptor still is that of the file: a script may have closed it."""
    if STACKS_FILE and os.path.samestat(os.fstat(STACKS_FILE[0]), STACKS_FILE[1]):
        os.write(STACKS_FILE[0], b"launch: the main thread of %d has ended\n" % os.getpid())


class LeaveError(KeyboardInterrupt):
    """Raised in a main thread that has ended, at the agent's signal; functions at exit know its kind from Ctrl-C."""


class ImportWatch:
    """A finder that finds no module itself: it hands a module to the parts of the hook once it is imported."""

    def __init__(self, parts: "Sequence[str]") -> None:
        self.functions: "dict[str, list[Any]]" = {"threading": [watch_end]}
        for part, module, function in PARTS:
            if part in parts:
                self.functions.setdefault(module, []).append(function)

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return what the other finders find for a module that is watched; None for every other module."""
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
    """Let a module's loader call functions after its execution; the loader is the same again by then."""
    loader: Any = spec.loader

    def exec_module(module: "ModuleType") -> None:
        vars(loader).pop("exec_module", None)
        execute(module)
        for function in functions:
            _call(function, module)

    # Python leaves frames of importlib out of tracebacks. So a module that fails looks as if nobody watched it.
    code = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
    exec_module.__code__ = code
    try:
        execute = loader.exec_module
        loader.exec_module = exec_module
    except (AttributeError, TypeError):
        return  # a loader of another kind: its module is not watched


def _call(function: "Any", module: "ModuleType") -> None:
    try:
        if callable(function):
            function(module)
            return
        name, _, attribute = function.rpartition(".")
        part = __import__("launcher_worker." + name, fromlist=[attribute])
        getattr(part, attribute)(module)
    except Exception:  # noqa: BLE001, S110 - whatever is wrong with the hook, the training goes on
        pass


def _import_next() -> None:
    """Import the next `sitecustomize`, as if this one were not there; `site` deals with what that raises."""
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
