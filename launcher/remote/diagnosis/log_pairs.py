"""Find names with numbers in a line of a log: in a printed dict or JSON object, and in free text.

    {'loss': '1.234', 'grad_norm': '0.5', 'epoch': '0.1'}
    step 10/1000 | lm loss: 7.48E+00 | grad norm: 2.1 | learning rate: 1.5E-05
    iter 10: loss 2.3012, time 123.45ms

All patterns are linear: each quantifier is bounded or cannot give back what another one takes.
"""

from __future__ import annotations

import math
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from .log_names import Name, is_measure, meaning

NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3}){1,4}(?![\d,])(?:\.\d{1,20})?|\d{1,18}(?:\.\d{0,25})?(?:[eE][-+]?\d{1,3})?|\.\d{1,25}(?:[eE][-+]?\d{1,3})?"
    r"|nan|NaN|NAN|inf(?:inity)?|Inf(?:inity)?|INF)"
)
_WRAP = r"(?:tensor\(|(?:np|numpy|torch)\.\w{1,12}\(|[\[('\"])?"
_PAIR = re.compile(
    r"(?<![\w/.@%$+-])([A-Za-z][\w/.@-]{0,80}(?:'s)?(?: [A-Za-z][\w/@-]{0,60}){0,3})"
    r"(\s{0,12}[:=]\s{0,12}|\s{1,12})" + _WRAP + "(" + NUMBER + r")(?![\w]|[./:-]\d|/\s?\d)"
)
_CALL = re.compile(
    r"[A-Za-z_]\w{0,80}\((?=\s?\w{1,80}=(?!=))(?<!tensor\()"
)  # a namespace or a configuration that was printed
_COMMENT = re.compile(
    r"\s{0,80}(?:#|//|>>>|File \"|return |if |elif |raise |assert |def |self\.|warnings?\.)"
)
_OTHER = re.compile(
    r"\b(?:best|initial|final|target|lowest|highest|minimum|maximum|expected)\b", re.IGNORECASE
)
_WORD = re.compile(
    r"\b(?!(?:train|test|eval|valid|val|dev|epoch)(?:ing|uation|ation)?\b)[A-Za-z]{3,}", re.IGNORECASE
)
_MOST_WORDS = 5  # beside the pairs, in a line with a step; a sentence has more
_FEW_WORDS = 3  # in a line without a step, and beside a number that is not finite: sentences speak of NaN

_TOKEN = re.compile(
    r"""(?:'(?P<a>[^'\\]{1,120})'|"(?P<b>[^"\\]{1,120})")\s{0,8}:\s{0,8}"""
    r"""(?:(?:tensor|(?:np|numpy|torch)\.\w{1,12})\()?(?P<q>['"]?)(?P<n>[-+]?(?:[0-9.][0-9.eE+-]{0,40}|nan|NaN|inf|Infinity|[0-9]{1,12}/[0-9]{1,12}))(?P=q)\s{0,8}(?=[,})])"""
    r"""|[{}\[\]]|"(?:[^"\\]|\\.){0,300}"|'(?:[^'\\]|\\.){0,300}'"""
)
_MOST_PAIRS = 400


class Pairs(NamedTuple):
    """The names of a line that mean something, in order, where the first measure begins, and whether the line is prose."""

    found: List[Tuple[Name, float]]
    first: int
    is_prose: bool


def text_pairs(line: str, *, has_step: bool) -> Optional[Pairs]:
    """Return the pairs of a line of free text, None if it is not a metric line."""
    if _COMMENT.match(line) or _CALL.search(line):
        return None
    found: List[Tuple[Name, float]] = []
    first = len(line)
    is_weak, is_finite, is_marked = True, True, False
    start, begin, length = 0, 0, 0
    words = 0
    for match in _PAIR.finditer(line):
        words += _words(line, begin, match.start())
        start, begin = begin, match.end()
        length += 1
        name = meaning(match[1])
        if name is None or _OTHER.search(line, start, match.start()):
            continue
        value = number(match[3])
        is_finite = is_finite and math.isfinite(value)
        is_marked = is_marked or ":" in match[2] or "=" in match[2]
        if name.is_measure:
            first = min(first, match.start())
            is_weak = False
        if len(found) < _MOST_PAIRS:
            found.append((name, value))
    if not found or (is_weak and not has_step):
        return None
    words += _words(line, begin, len(line))
    if has_step:
        allowed = (_MOST_WORDS if is_finite else _FEW_WORDS) + length // 2
    else:
        allowed = _FEW_WORDS if is_marked else 0  # `loss 2.3` alone, not in a sentence
    return Pairs(found, first, words > allowed)


def _words(line: str, begin: int, end: int) -> int:
    return sum(1 for _ in _WORD.finditer(line, begin, end)) if end - begin > 2 else 0


def number(text: str) -> float:
    """Return a number as a log writes it: 1,234.5, 1e-05, nan, Infinity."""
    try:
        return float(text)
    except ValueError:
        return float(text.replace(",", ""))


def dict_pairs(line: str) -> Optional[Dict[str, str]]:
    """Return the names and numbers, as text, of a dict or a JSON object at the end of a line, or None without one.

    Only its own entries count, not those of what is nested in it.
    """
    start = line.find("{")
    if start < 0 or line[start + 1 : start + 2] not in ("'", '"') or not line.rstrip().endswith("}"):
        return None
    pairs: Dict[str, str] = {}
    depth = 0
    end = start
    for token in _TOKEN.finditer(line, start):
        mark = token[0]
        end = token.end()
        if token["n"] is not None:
            if depth == 1 and len(pairs) < _MOST_PAIRS:
                pairs[token["a"] or token["b"]] = token["n"]
        elif mark in "{[":
            if depth == 1 and line[token.start() - 8 : token.start()].rstrip()[-1:] != ":":
                return None  # a key of its own kind: not what a training prints
            depth += 1
        elif mark in "}]":
            depth -= 1
            if depth == 0:
                break
    return pairs if depth == 0 and not line[end:].strip() else None


def floats(pairs: Dict[str, str]) -> Iterator[Tuple[str, float]]:
    """Yield the names whose text is a number."""
    for key, text in pairs.items():
        try:
            yield key, float(text)
        except ValueError:
            continue


_UNSET = re.compile(r": (?:None|True|False|null|true|false)\b")


def is_settings(line: str, numbers: int) -> bool:
    """Whether a dict with so many numbers holds a program's settings: more of its values are flags or not set."""
    return sum(1 for _ in _UNSET.finditer(line)) > numbers


_TRAINERS = ("loss", "grad_norm", "eval_loss", "train_loss", "train_runtime", "eval_runtime")


def dict_values(pairs: Dict[str, str]) -> Dict[str, float]:
    """Return the metrics of a dict, empty if it holds none.

    transformers prints a NaN loss as 0; a gradient norm that is not finite beside it shows that it was NaN.
    """
    values = dict(floats(pairs))
    if not any(key in values for key in _TRAINERS) and not any(map(is_measure, values)):
        return {}
    norm = values.get("grad_norm", 0.0)
    if values.get("loss") == 0.0 and not math.isfinite(norm):
        values["loss"] = math.nan
    return values
