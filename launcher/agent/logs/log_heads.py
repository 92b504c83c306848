"""Read headings that announce a phase: `Evaluating...`, `=== Validation ===`, `Epoch 2 train`, `Epoch 3`."""

from __future__ import annotations

import re
from typing import Optional

_MAX_CHARS = 80
_NO_HEAD = re.compile(r"[(){}'\"/\\,;%$@&?]|\A[a-z]+:\Z")  # `eval:` alone is a setting
_WORD = re.compile(r"[A-Za-z]+")
_EVALUATION = frozenset(
    [
        *("eval", "evaluate", "evaluating", "evaluation", "test", "testing"),
        *("val", "valid", "validate", "validating", "validation"),
    ]
)
_TRAINING = frozenset(["train", "training"])
_EPOCH = frozenset(["epoch", "of"])
_OTHERS = frozenset(
    [
        *(
            "start",
            "starting",
            "started",
            "begin",
            "beginning",
            "begins",
            "run",
            "running",
            "now",
            "on",
            "the",
            "a",
        ),
        *(
            "of",
            "set",
            "phase",
            "stage",
            "loop",
            "epoch",
            "results",
            "result",
            "metrics",
            "performance",
            "model",
        ),
        *("best", "final", "checkpoint", "error"),
    ]
)


def phase_of(line: str) -> Optional[bool]:
    """Return False for the heading of an evaluation, True for the training's or an epoch's, else None."""
    if len(line) > _MAX_CHARS or _NO_HEAD.search(line):
        return None
    words = frozenset(word.lower() for word in _WORD.findall(line))
    has_number = any(char.isdigit() for char in line)
    if has_number and "epoch" not in words:
        return None
    if words and words <= _EPOCH:
        return True if has_number else None
    evaluates, trains = bool(words & _EVALUATION), bool(words & _TRAINING)
    if evaluates == trains or not words <= _EVALUATION | _TRAINING | _OTHERS:
        return None
    return trains
