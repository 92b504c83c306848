"""Find names with numbers in a line of a log: in a printed dict or JSON object, and in free text.

    {'loss': '1.234', 'grad_norm': '0.5', 'epoch': '0.1'}
    step 10/1000 | lm loss: 7.48E+00 | grad norm: 2.1 | learning rate: 1.5E-05
    iter 10: loss 2.3012, time 123.45ms

All patterns take linear time: each quantifier is bounded or never backtracks into another.
"""

from __future__ import annotations

import math
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from .log_names import Name, aside_name, is_evaluation, is_measure, is_training_loss, meaning

_NOT_FINITE = r"(?i:nan|inf(?:inity)?)"
NUMBER = (
    r"[-+]?(?:[1-9]\d{0,2}(?:(?:,\d{3}){2,4}(?:\.\d{1,20})?|,\d{3}\.\d{1,20})(?!\d|,\d)"
    r"|\d{1,18}(?:\.\d{0,25})?(?:[eE][-+]?\d{1,3})?|\.\d{1,25}(?:[eE][-+]?\d{1,3})?|" + _NOT_FINITE + ")"
)
"""A number as logs write it. 2,345 does not count: it may mean 2345 or 2.345."""
_GROUPED = r"(?!\d{1,3}[ '\u00a0\u202f]\d{3}(?!\d))"  # 1 234 is neither 1 nor 234
# In `Train loss 100 0.5` and `Validation loss 100: 0.5`, 100 is a step.
_NO_COUNTER = r"(?!\d{1,15}(?:\s{0,3}:\s{0,3}|\s{1,6})[-+]?(?:\.?\d|" + _NOT_FINITE + r"(?!\w)))"
OF = r"(?:\s?/\s?|\s(?:out\s)?of\s)"
# In `Accuracy: 9/10 (90%)`, 90 is the value.
_COUNTS = r"(?:\d{1,15}" + OF + r"\d{1,15}\s?\((?=[\d.]{1,20}\s?%))?"
_WRAP = r"(?:tensor\(|(?:np|numpy|torch)\.\w{1,12}\(|[\[('\"])?"
PAIR = re.compile(
    r"(?<![\w/.@%$+-])([A-Za-z][\w/.@-]{0,80}(?:'s)?(?: (?!"
    + _NOT_FINITE
    + r"(?![\w/@-]))[A-Za-z][\w/@-]{0,60}){0,3}\.?)"
    r"(\s{0,12}[:=]\s{0,12}|\s{1,12}"
    + _NO_COUNTER
    + ")"
    + _COUNTS
    + _WRAP
    + _GROUPED
    + "(?P<number>"
    + NUMBER
    + r")(?![\w]|[.,:-]\d|"
    + OF
    + r"\d|\s{0,3}(?:-{1,3}>|\u2192)|\s[+*]\s?[\d.])"
)
_CELLS = re.compile(
    r"(?:\A|[|\u2502\u2503])\s{0,40}([A-Za-z][\w/.@-]{0,60})\s{0,60}[|\u2502\u2503]\s{0,40}(?P<number>"
    + NUMBER
    + r")\s{0,40}[|\u2502\u2503]"
)
_CALL = re.compile(
    r"[A-Za-z_]\w{0,80}\((?=\s?\w{1,80}=(?!=))(?<!tensor\()"
)  # a printed namespace or configuration
_COMMENT = re.compile(
    r"\s{0,80}(?:#|//|>>>|File \"|return |if |elif |raise |assert |def |self\.|warnings?\.)"
)
_OTHER = re.compile(
    r"\b(?:best|initial|final|target|lowest|highest|minimum|maximum|expected)\b", re.IGNORECASE
)
_OF_CHECKPOINT = re.compile(r"\b(?:loaded|resumed|resuming|restored|restoring)\b", re.IGNORECASE)
_LIST = re.compile(r"[\[(][-+]?[\d.e+-]{1,30}(?:\s?,\s?|\s{1,2})[-+]?\.?\d")
_ARTICLE = re.compile(r"\b(?:the|an?|this|that|of|his|her|its|my|your|our)\s", re.IGNORECASE)
_ONE_OF_MANY = re.compile(r"\b(?:class|label|layer|head|query)s?[ _#:=]{0,3}\d", re.IGNORECASE)
_WORD = re.compile(
    r"\b(?!(?:train|test|eval|valid|val|dev|epoch)(?:ing|uation|ation)?\b)[A-Za-z]{3,}", re.IGNORECASE
)
_SETS = re.compile(r"\d{1,9}:\t(?:learn|test): ")  # CatBoost names the data, not the measure
_LABEL = re.compile(
    r"\b(?:train|dev|val|valid|validation|eval|test)\s?:\s{1,3}\Z", re.IGNORECASE
)  # `DEV : loss 1.9`
_MAX_WORDS = 5  # the most words next to the pairs, if the line has a step; a sentence has more
_FEW_WORDS = 3  # the same, if the line has no step or a non-finite number: sentences mention NaN

_TOKEN = re.compile(
    r"""(?:'(?P<a>[^'\\]{1,120})'|"(?P<b>[^"\\]{1,120})")\s{0,8}:\s{0,8}"""
    r"""(?:(?:tensor|(?:np|numpy|torch)\.\w{1,12})\()?(?P<q>['"]?)(?P<n>[-+]?(?:[0-9.][0-9.eE+-]{0,40}|nan|NaN|inf|Infinity|[0-9]{1,12}/[0-9]{1,12}))(?P=q)\s{0,8}(?=[,})])"""
    r"""|[{}\[\]]|"(?:[^"\\]|\\.){0,300}"|'(?:[^'\\]|\\.){0,300}'"""
)
_MAX_PAIRS = 400


class PairsForm(NamedTuple):
    """The known names of a line with the positions of their numbers, and where the first measure begins.

    If `is_weak`, the line needs a step to be a metric line. `is_prose`: without a step, the line is prose.
    `is_prose_with_step`: it is prose even with a step.
    """

    named: Tuple[Tuple[Name, slice], ...]
    first: int
    is_weak: bool
    is_prose: bool
    is_prose_with_step: bool

    def of(self, line: str) -> List[Tuple[Name, float]]:
        """Return the names and numbers of a line of this form."""
        return [(name, number(line[where])) for name, where in self.named]


def pairs_form(line: str) -> Optional[PairsForm]:
    """Return the form of a line of free text, None if it is not a metric line."""
    if _COMMENT.match(line) or _CALL.search(line) or _OF_CHECKPOINT.search(line):
        return None
    named: List[Tuple[Name, slice, str]] = []
    first = len(line)
    is_weak, is_finite, is_marked = True, True, False
    start, begin, length = 0, 0, 0
    words = 0
    has_sets = bool(_SETS.match(line))
    for match in PAIR.finditer(line):
        words += _words(line, begin, match.start())
        start, begin = begin, match.end()
        length += 1
        name = (
            Name(match[1], True, match[1] != "learn")
            if has_sets and match[1] in ("learn", "test")
            else meaning(match[1])
        )
        has_mark = ":" in match[2] or "=" in match[2]
        if name is None or _OTHER.search(line, start, match.start()):
            continue
        if not has_mark and _ARTICLE.search(match[1]):  # a sentence: `the loss 3 of them had`
            continue
        if name.is_measure and _LIST.match(line, match.start(3) - 1):
            continue
        is_finite = is_finite and math.isfinite(number(match[3]))
        is_marked = is_marked or has_mark or bool(_LABEL.search(line, 0, match.start()))
        if name.is_measure:
            first = min(first, match.start())
            is_weak = False
        if len(named) < _MAX_PAIRS:
            named.append((name, slice(*match.span(3)), match[1].lower()))
    if not named or _ONE_OF_MANY.search(line, 0, first):
        return None
    words += _words(line, begin, len(line))
    allowed = _FEW_WORDS if is_marked else 0  # accepts `loss 2.3` alone, not in a sentence
    with_step = (_MAX_WORDS if is_finite else _FEW_WORDS) + length // 2
    return PairsForm(
        tuple(_distinct(list(_of_phase(named)))), first, is_weak, words > allowed, words > with_step
    )


def _of_phase(named: List[Tuple[Name, slice, str]]) -> Iterator[Tuple[Name, slice, str]]:
    """Yield the names of a line. Behind `val Loss: 2.5`, `Acc: 0.5` is the evaluation's too."""
    is_evaluated = has_loss = False
    for name, place, printed in named:
        is_marked = name.is_measure and any(map(is_evaluation, printed.split()[:-1]))
        is_theirs = is_evaluated and name.is_measure and not (has_loss and is_training_loss(name.text))
        if is_marked or name.text.startswith("train"):
            is_evaluated, has_loss, is_theirs = is_marked, name.text.endswith("loss"), False
        yield name._replace(text=aside_name(name.text)) if is_theirs else name, place, printed


def _distinct(named: List[Tuple[Name, slice, str]]) -> Iterator[Tuple[Name, slice]]:
    """Yield the names; those that would be the same, as of `Style Loss: 2.5 Content Loss: 1.5`, as printed."""
    forms: Dict[str, Set[str]] = {}
    for name, _, printed in named:
        forms.setdefault(name.text, set()).add(printed)
    for name, place, printed in named:
        is_one = len(forms[name.text]) == 1
        yield name if is_one else name._replace(text="_".join(printed.split()).rstrip("-.")), place


def cell_form(line: str) -> Optional[PairsForm]:
    """Return the form of a table row with the training loss and its number in two cells, else None."""
    match = _CELLS.search(line) if line.rstrip()[-1:] in ("|", "\u2502", "\u2503") else None
    name = meaning(match[1]) if match else None
    if match is None or name is None or not is_training_loss(name.text):
        return None
    place = slice(*match.span("number"))
    return PairsForm(
        ((name, place),), match.start(1), is_weak=False, is_prose=False, is_prose_with_step=False
    )


def _words(line: str, begin: int, end: int) -> int:
    return sum(1 for _ in _WORD.finditer(line, begin, end)) if end - begin > 2 else 0


def number(text: str) -> float:
    """Return a number as a log writes it: 1,234.5, 1e-05, nan, Infinity."""
    try:
        return float(text)
    except ValueError:
        return float(text.replace(",", ""))


class DictForm(NamedTuple):
    """The names in a dict with the positions of their numbers. `unset` counts values that are flags or null.

    If `is_evaluation`, a value marks the dict as an evaluation's, as in `{"split": "val", "loss": 2.5}`.
    """

    entries: Tuple[Tuple[str, slice], ...]
    unset: int
    is_evaluation: bool = False


OF_EVALUATION = re.compile(
    r"(?<![\w-])(?:_?split|data_split|subset|mode|phase|stage|event|kind|type|loop)['\"]?\s{0,3}[:=]\s{0,3}['\"]?"
    r"(?:val|valid|validat(?:e|ing|ion)|eval|evaluat(?:e|ing|ion)|test(?:ing)?|dev)(?![A-Za-z0-9/.-])",
    re.IGNORECASE,
)
_RESULTS = ("train", "training", "eval", "evaluation", "val", "valid", "validation", "test", "dev", "metrics")
_OPENS = re.compile(r"\s{0,8}:\s{0,8}\{")
_UNSET = re.compile(r": (?:None|True|False|null|true|false)\b")


def dict_form(line: str) -> Optional[DictForm]:
    """Return the names and number positions of a dict or JSON object at the end of a line, None without one.

    Entries of nested dicts count if all these dicts are results: `{"train": {"loss": 0.5}}` has `train/loss`.
    """
    start = line.find("{")
    if start < 0 or line[start + 1 : start + 2] not in ("'", '"') or not line.rstrip().endswith("}"):
        return None
    pairs: Dict[str, slice] = {}
    nested: Dict[str, slice] = {}
    path: List[str] = []
    key, end, has_results = "", start, True
    for token in _TOKEN.finditer(line, start):
        mark = token[0]
        end = token.end()
        if token["n"] is not None:
            found = pairs if len(path) == 1 else nested
            if path and len(found) < _MAX_PAIRS and (has_results or found is pairs):
                found["/".join([*path[1:], token["a"] or token["b"]])] = slice(*token.span("n"))
        elif mark in "{[":
            if len(path) == 1 and line[token.start() - 8 : token.start()].rstrip()[-1:] != ":":
                return None  # an unusual key: a training does not print it
            has_results = has_results and (not path or (mark == "{" and key.lower() in _RESULTS))
            path.append(key)
        elif mark in "}]":
            path.pop()
            if not path:
                break
        else:
            key = mark[1:-1]
            has_results = has_results and (len(path) < 2 or bool(_OPENS.match(line, end)))
    if path or line[end:].strip():
        return None
    pairs.update(nested if has_results else {})
    is_evaluation = bool(OF_EVALUATION.search(line, start))
    return DictForm(tuple(pairs.items()), sum(1 for _ in _UNSET.finditer(line)), is_evaluation)


def floats(pairs: Dict[str, str]) -> Iterator[Tuple[str, float]]:
    """Yield the names whose text is a number."""
    for key, text in pairs.items():
        try:
            yield key, float(text)
        except ValueError:
            continue


_TRAINERS = ("loss", "grad_norm", "eval_loss", "train_loss", "train_runtime", "eval_runtime")


def dict_values(pairs: Dict[str, str]) -> Dict[str, float]:
    """Return the metrics of a dict, empty if it holds none.

    transformers prints a NaN loss as 0. A non-finite gradient norm in the same dict shows that the loss was
    NaN.
    """
    values = dict(floats(pairs))
    if not any(key in values for key in _TRAINERS) and not any(map(is_measure, values)):
        return {}
    norm = values.get("grad_norm", 0.0)
    if values.get("loss") == 0.0 and not math.isfinite(norm):
        values["loss"] = math.nan
    return values
