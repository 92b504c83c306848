"""Skip the lines of a log that cannot be metric lines, at a fraction of the cost of parsing them.

A script may print 100,000 lines at once. A piece of the log that contains none of a few words, such as
`loss`, is skipped as a whole. In other pieces each line is searched for such a word, and then for a measure
followed by a number.
"""

from __future__ import annotations

import re
from typing import Dict, List, Pattern, Tuple

_WORDS = (
    b"loss",
    b"ppl",
    b"perp",
    b"acc",
    b"epoch",
    b"reward",
    b"score",
    b"eval",
    b"valid",
    b"val_",
    b"lr",
    b"bpb",
    b"wer",
    b"f1",
    b"miou",
    b"map50",
    b"class ",
    b"testing",
    b"test:",
    b"test error",
    b" test ",
    b" val ",
    b"global_step",
    b"[step",
    b"train on ",
    b"learn: ",
)
_LIKELY = re.compile(
    rb"(?:loss|ppl|perp|acc|reward|score|eval|valid|val_|lr|bpb|wer|f1|miou|map50|learn)[\w/@.()'\"-]{0,60}(?: [a-z][\w/()-]{0,40})?"
    rb"['\"]?\s{0,12}[:=]?\s{0,12}(?:tensor\(|(?:np|numpy|torch)\.\w{1,12}\(|[\[('\"])?[-+]?\.?(?:\d|nan|inf)"
)
_HEADS = (
    b"epoch",
    b"[epoc",
    b"[eval",
    b"step,",
    b"iter,",
    b"itera",
    b"globa",
    b"train",
)  # headings that give the position of the next lines
_PHASE = re.compile(
    rb"\b(?:train|training|eval|evaluat(?:e|ing|ion)|val|valid|validat(?:e|ing|ion)|test|testing)\b"
    rb"(?:[^a-z0-9]{1,12}(?:[a-z]{2,11}|epoch[^a-z]{1,12})){0,3}[^a-z0-9]{0,40}(?:\x1b\[[\d;]{0,20}m[^a-z0-9]{0,8})?\Z"
)
_MAX_PHASE_LENGTH = 160
_COLUMNS = re.compile(
    rb"\S(?:\s{2,}|\t|\s?(?:\||\xe2\x94[\x82\x83])\s?)\S"
)  # the heading of a table has no numbers

_searches: Dict[Tuple[bytes, ...], Pattern[bytes]] = {}


def words_of(low: bytes) -> List[bytes]:
    """Return the words of metric lines that a lower-case piece contains; without any, it has no metric line."""
    return [word for word in _WORDS if word in low]


def search_of(words: List[bytes]) -> Pattern[bytes]:
    """Return a pattern that finds any of these words."""
    key = tuple(words)
    pattern = _searches.get(key)
    if pattern is None:
        if len(_searches) > 500:
            _searches.clear()
        pattern = _searches[key] = re.compile(b"|".join(map(re.escape, words)))
    return pattern


def is_likely(low: bytes) -> bool:
    """Whether a lower-case line with one of the words may be a metric line or the heading of metric lines."""
    is_head = low.lstrip()[:5] in _HEADS or low.endswith(b"validation set")
    is_head = is_head or b"global_step" in low or b"[step" in low
    return is_head or bool(_LIKELY.search(low) or _COLUMNS.search(low)) or is_phase(low)


def is_phase(low: bytes) -> bool:
    """Whether a lower-case line may announce a phase: an evaluation or the training."""
    return len(low) <= _MAX_PHASE_LENGTH and bool(_PHASE.search(low))
