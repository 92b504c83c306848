"""Words for specific failures: the cause and the advice, more exact than those of their class.

The class of a failure decides what launcher does next. These words only explain to the user a line of the log,
or the end of a command that printed nothing.
"""

from __future__ import annotations

import re
import signal
from typing import NamedTuple, Optional, Tuple

from . import missing_module
from .cause_text import CauseText
from .cures import cure
from .library_changes import removed

SHELL_SIGNAL = 128
"""A shell exits with this number plus the signal that ended its command."""
_MISTAKES = ("user-code-error", "missing-dependency", "unknown")


class _SpecificCause(NamedTuple):
    classes: Tuple[str, ...]
    pattern: "re.Pattern[str]"
    words: CauseText


def _specific_cause(classes: Tuple[str, ...], pattern: str, why: str, mend: str) -> _SpecificCause:
    return _SpecificCause(classes, re.compile(pattern), CauseText(why, mend))


SPECIFIC_CAUSES = (
    _specific_cause(
        ("user-code-error",),
        r"^the job refuses: ",
        "launcher's job refuses its data or its settings, which this line names",
        "correct it, and launch again",
    ),
    _specific_cause(
        ("missing-dependency",),
        r"did not match any variant of untagged enum",
        "a newer version of tokenizers wrote this tokenizer.json, and the installed one cannot read it",
        "install newer versions   launch … --with 'tokenizers' --with 'transformers'",
    ),
    _specific_cause(
        ("shm-too-small",),
        r"return code = -7\b",
        "DeepSpeed's process was killed by SIGBUS: /dev/shm is full, or a file that it had mapped was truncated",
        "give the container more shared memory (--shm-size=8g or --ipc=host), or use fewer loader workers",
    ),
    _specific_cause(
        ("user-code-error",),
        r"error: unrecognized arguments:|^Error: No such option\b",
        "the script has no such argument",
        "compare it with the script's own options; launch's options, such as --host, come before --   launch --host HOST -- COMMAND",
    ),
    _specific_cause(
        ("user-code-error",),
        r"error: the following arguments are required:|error: argument [^\n]+: |^Error: (?:Invalid value|Missing option|Missing argument)\b",
        "an argument of the script is missing or wrong",
        "give it with the command, after --   launch -- python train.py --NAME VALUE",
    ),
    _specific_cause(
        ("host-oom-killed",),
        r"^(?:numpy\.\S+\.)?_?(?:Array)?MemoryError\b",
        "the script asked for more memory than the host or the container gives it",
        "use smaller pieces of the data, fewer loader workers or more memory",
    ),
    _specific_cause(
        ("needs-terminal",),
        r"api_key not configured \(no-tty\)",
        "wandb asks for an API key, and a launched script has no terminal",
        "pass the key as a secret   launch --secret WANDB_API_KEY …     or turn it off   launch -e WANDB_MODE=offline …",
    ),
)

_SIGNALS = {
    signal.SIGSEGV: "native code read or wrote memory that is not its own",
    signal.SIGABRT: "native code aborted, and usually printed why",
    signal.SIGILL: "native code uses an instruction that this processor does not have",
    signal.SIGFPE: "native code divided by zero",
    signal.SIGBUS: "shared memory is full, or a file that it had mapped was truncated",
    signal.SIGINT: "Ctrl-C was pressed, or SIGINT was sent",
    signal.SIGPIPE: "it wrote to a closed pipe",
    signal.SIGXCPU: "it used up the CPU time that the host allows (ulimit -t)",
    signal.SIGXFSZ: "it wrote a file larger than the host allows (ulimit -f)",
    signal.SIGTRAP: "it was stopped at a breakpoint, or by an assertion of native code",
    signal.SIGQUIT: "SIGQUIT was sent: it ended with a core dump",
}
_NATIVE = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
_STATUSES = {
    126: CauseText(
        "the shell could not execute a file", "make it executable: chmod +x FILE, or name its interpreter"
    ),
    127: CauseText(
        "the shell did not find a program", "check its name, and that the job's environment has it"
    ),
}

LAST_LINE = CauseText(
    "it ended with exit status 1; its log shows no error, and this is its last line",
    'if the script ended by sys.exit("text"), this line is its text, and says what to fix',
)
"""The cause and advice for a command whose exit status is that of `sys.exit("text")`."""
OF_LIBRARIES = CauseText(
    "the program's arguments, its configuration or its data are wrong, or versions do not fit; no line of the traceback is in your own code",
    "compare the arguments, the configuration and one row of the data with the program's documentation",
)
"""The cause and advice for an exception whose traceback has no line of the user's code."""


def words_of_line(name: str, line: str, near: str, log: str) -> Optional[CauseText]:
    """Return the specific cause and advice for the line that proves a failure; None if no table has them.

    `name` is the class of the failure. `near` is that line and the few after it.
    """
    for cause in SPECIFIC_CAUSES:
        if name in cause.classes and cause.pattern.search(line):
            return cause.words
    gone = removed(line, log) if name in _MISTAKES else None
    if gone is None:
        known = cure(near, log)
        if known is not None:
            return known
        missing = missing_module.words(line) if name == "missing-dependency" else None
        return CauseText(*missing) if missing is not None else None
    older = "   launch … --with '%s'" % gone.change.older if gone.change.older else ""
    none, _, instead = gone.change.replacement.partition("nothing: ")
    mend = "use %s" % none if none else instead
    return CauseText(
        "the installed version of the library has no '%s'" % gone.name,
        "%s; or install a version that has it%s" % (mend, older) if older else mend,
    )


def words_of_end(code: Optional[int], number: Optional[int], *, has_line: bool = False) -> CauseText:
    """Return the cause and advice for a command whose log shows no cause.

    `code` is its exit status, `number` the signal that ended it. `has_line`: a line of its log says that something failed.
    """
    if number is None and code is not None and SHELL_SIGNAL < code <= SHELL_SIGNAL + 64:
        number = code - SHELL_SIGNAL
    if number is not None:
        return _words_of_signal(number)
    if code in _STATUSES:
        return _STATUSES[code]
    if not code:
        return CauseText("how it ended is not known", "read the end of its log")
    return CauseText(
        "it ended with exit status %d%s" % (code, "" if has_line else ", and its log shows no error"),
        "the script chose this status, e.g. by sys.exit(%d): read its last output" % code,
    )


def _words_of_signal(number: int) -> CauseText:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "signal %d" % number
    known = _SIGNALS.get(number)  # type: ignore[call-overload] # Signals are integers
    why = "it was killed by %s (signal %d)" % (name, number) + (": %s" % known if known else "")
    if number in _NATIVE:
        return CauseText(
            why,
            "set PYTHONFAULTHANDLER=1 in its variables to print where it crashed; the usual cause is a package built for another version of torch or CUDA",
        )
    return CauseText(why, "read the end of its log")
