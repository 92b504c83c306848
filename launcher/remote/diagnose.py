"""What a failed attempt's log says of the cause: a table of rules, and the one line that counts.

What counts is the last exception that nobody caught: the end of the log's last traceback, launchers' wrappers and what
other ranks say of a dead one aside; and the first of its chain, for the others came about while it was handled. Words
that a script merely prints are no traceback's end. Sources of the messages: torch 2.13, transformers 5.23 (our own
runs), and public logs of older ones.
"""

from __future__ import annotations

import re
from typing import Iterator, List, NamedTuple, Optional, Pattern

from .logscan import LogScanner

TAIL_BYTES = 256 * 1024
MOST_CHARS = 500


class Rule(NamedTuple):
    """A failure class by an exception's line: what it looks like, why it happens, what a person can do.

    `unless` is what, anywhere above, makes it another failure.
    """

    name: str
    pattern: Pattern[str]
    why: str
    mend: str
    unless: Optional[Pattern[str]] = None


_NO_CARD = re.compile(
    r"Found no NVIDIA driver|NVIDIA driver on your system is too old|No CUDA GPUs are available"
    r"|Torch not compiled with CUDA enabled|CUDA driver version is insufficient"
)

RULES = (
    Rule(
        "fp16-unscale",
        re.compile(r"Attempting to unscale FP16 gradients"),
        "a trainable parameter is float16 while the gradient scaler is on",
        "keep trainables in float32: model = worker.prepare(model), after adapters and before the optimizer",
    ),
    Rule(
        "bf16-unsupported",
        re.compile(
            r"Your setup doesn't support bf16/gpu"
            r"|Current CUDA Device does not support bfloat16"
            r"|Bfloat16 is only supported on GPUs with compute capability"
            r"|CUBLAS_STATUS_NOT_SUPPORTED.*CUDA_R_16BF"
        ),
        "bfloat16 wants a card of compute capability 8.0 or more",
        "let the plan choose the precision: TrainingArguments(**worker.training_arguments(...)) in place of bf16=True",
        unless=_NO_CARD,
    ),
    Rule(
        "bf16-dtype-mismatch",
        re.compile(
            r"expected dtype (float|c10::BFloat16) for `end` but got dtype (float|c10::BFloat16)"
            r"|expected scalar type (BFloat16 but found Float|Float but found BFloat16)"
            r"|_amp_foreach_non_finite_check_and_unscale_\w*\W+not implemented for 'BFloat16'"
            r"|mat1 and mat2 (must|to) have the same dtype, but got(?=.*(BFloat16|Half))(?!.*(Long|Int|Double))"
        ),
        "two dtypes meet: the model was cast after its optimizer had state, or a part of it was never cast",
        "never cast the training model: load it as the plan says, and let autocast do the rest",
    ),
)

_CLEAN = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|^\[(?:default|rank)?\d+\]:\s?")
_FRAME = re.compile(r'\s*File ".*", line \d+')
_HEAD = "Traceback (most recent call last):"
_WRAPPER = re.compile(r"\S*(?:ChildFailedError|CalledProcessError|SignalException|ProcessRaisedException)\b")
_CASCADE = re.compile(r"\S*DistBackendError\b|.*Connection (?:closed|reset) by peer")
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


class Diagnosis(NamedTuple):
    """A class, the line that proves it, why it happens and what a person can do."""

    name: str
    line: str
    why: str
    mend: str


def diagnose(log: bytes) -> Optional[Diagnosis]:
    """Return what the end of a failed attempt's log proves; None where it proves nothing that is known here."""
    lines = [_CLEAN.sub("", line).rstrip() for line in re.split(r"[\r\n]+", log.decode("utf-8", "replace"))]
    for number in _last_chain(lines):
        for rule in RULES:
            if rule.pattern.search(lines[number]):
                if rule.unless is not None and any(map(rule.unless.search, lines[:number])):
                    return None
                return Diagnosis(rule.name, lines[number][:MOST_CHARS], rule.why, rule.mend)
    return None


def _last_chain(lines: List[str]) -> List[int]:
    """Return the numbers of the exceptions that ended the script, the first of their chain first; none if none did."""
    raised = [n for n in _exceptions(lines) if not _WRAPPER.match(lines[n]) and not _CASCADE.match(lines[n])]
    if not raised or _goes_on(lines[raised[-1] + 1 :]):
        return []
    first = len(raised) - 1
    while first > 0 and any(line in _CHAIN for line in lines[raised[first - 1] : raised[first]]):
        first -= 1
    return raised[first:]


def _exceptions(lines: List[str]) -> Iterator[int]:
    """Yield the numbers of the lines that end a traceback: the first behind its frames that is not indented."""
    is_inside = False
    for number, line in enumerate(lines):
        if line == _HEAD or _FRAME.match(line):
            is_inside = True
        elif is_inside and line and not line[0].isspace():
            is_inside = False
            yield number


def _goes_on(lines: List[str]) -> bool:
    """Whether the training went on, so that what was printed before was no end of it."""
    return bool(LogScanner().feed("\n".join([*lines, ""]).encode()))
