"""The form of a line that may hold metrics: its kind, and the positions of its names and numbers."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Tuple

from .log_bars import BarForm, bar_form, keras_form
from .log_heads import phase_of
from .log_lines import prefix_of
from .log_pairs import OF_EVALUATION, DictForm, PairsForm, cell_form, dict_form, pairs_form
from .log_steps import PositionForm, place_form

ASIDE = re.compile(
    r"\b(?:(?:val|valid|eval|test)_(?:step|iter|batch|epoch|phase)|val|valid|validat(?:e|ing|ion)|eval|evaluat(?:e|ing|ion)|test(?:ing)?|dev|predict(?:ing)?|inference)\b(?!\.py|[_/=:]\d)"
    r"|\b(?-i:CV)\b(?!\W{0,3}(?:fold|split|\d))",
    re.IGNORECASE,
)
_PART = re.compile(r"[\[(]\s{0,8}(\d{1,12})\s?/\s{0,8}(\d{1,12})")
_RANK = re.compile(
    r"(?<![\w-])(?:global_|local_)?rank\s?[:=#]?\s?(\d{1,5})[\]:,|)]{0,2}(?=\s{1,4}(?!(?:acc|accuracy)\b)[^\s\d])",
    re.IGNORECASE,
)
_TRAINING = re.compile(r"\btrain(?:ing)?\b", re.IGNORECASE)
_OWN_COUNT = re.compile(r"[\s_\])-]{0,3}(?:step|iter|batch|update)", re.IGNORECASE)
_KERAS_SAMPLES = re.compile(r"Train on (\d{1,12}) samples\b")
_KERAS_EPOCH = re.compile(r"\s{0,4}Epoch (\d{1,9})/\d{1,9}\s*$")


class EvaluationMark(NamedTuple):
    """The words before an evaluation's numbers.

    `part` has the positions of its progress and length, if any. If `is_doubtful`, the step may count the
    evaluation's batches.
    """

    part: Optional[Tuple[slice, slice]]
    is_doubtful: bool


class TextForm(NamedTuple):
    """The form of free text. It begins at `begin`, behind the logger's prefix.

    All positions except the rank's are relative to `begin`. If the line has a printed dict, only that is
    read. `opens`: indented lines below may belong to this line's position. `trains`: False if the line
    announces an evaluation, True for the training. `is_label`: the number in `rank` may not be a rank.
    """

    begin: int
    rank: Optional[slice]
    is_indented: bool
    printed: Optional[DictForm] = None
    where: PositionForm = PositionForm(None)
    pairs: Optional[PairsForm] = None
    aside: Optional[EvaluationMark] = None
    opens: bool = False
    trains: Optional[bool] = None
    is_label: bool = False


class LineForm(NamedTuple):
    """The form of a line: the heading of a Keras epoch or training, a bar, or free text."""

    keras_epoch: Optional[slice] = None
    keras_samples: Optional[slice] = None
    keras: Optional[BarForm] = None
    bar: Optional[BarForm] = None
    text: Optional[TextForm] = None


def line_form(text: str) -> LineForm:
    """Return the form of a line."""
    start = text.lstrip()[:1]
    epoch = _KERAS_EPOCH.match(text) if start == "E" else None
    if epoch:
        return LineForm(keras_epoch=slice(*epoch.span(1)))
    samples = _KERAS_SAMPLES.match(text) if start == "T" else None
    if samples:
        return LineForm(keras_samples=slice(*samples.span(1)))
    keras = keras_form(text) if start.isdigit() else None
    if keras is not None:
        return LineForm(keras=keras)
    bar = bar_form(text) if "it [" in text or "\u2501" in text else None
    return LineForm(bar=bar) if bar is not None else LineForm(text=text_form(text))


def text_form(text: str) -> TextForm:
    """Return the form of free text."""
    prefix = prefix_of(text)
    line = text[prefix.end :]
    is_indented = text[:1] in ("\t", " ")
    printed = dict_form(line) if "{" in line else None
    if printed is not None:
        return TextForm(prefix.end, prefix.rank, is_indented, printed)
    pairs = pairs_form(line) or cell_form(line)
    where = place_form(line)
    opens = pairs is None and _opens(line, where)
    if pairs is None or pairs.is_weak:
        is_banner = line.isupper() and not line.endswith(":")
        is_setting = text.startswith("- ") or (is_indented and not is_banner)
        trains = None if is_setting else phase_of(line)
        return TextForm(prefix.end, prefix.rank, is_indented, None, where, pairs, None, opens, trains)
    aside = _aside_form(line, pairs.first)
    trains = True if aside is None and _trains(line, pairs) else None
    rank, is_label = prefix.rank, prefix.is_label
    inside = _RANK.search(line) if rank is None and "rank" in line.lower() else None
    if inside and inside.start() < pairs.first:
        rank = slice(prefix.end + inside.start(1), prefix.end + inside.end(1))
    return TextForm(prefix.end, rank, is_indented, None, where, pairs, aside, opens, trains, is_label)


def _opens(line: str, where: PositionForm) -> bool:
    """Whether indented lines below belong to a line: `[epoch=1][batch=5/10]:`, `[step=5]`, `GLOBAL_STEP: 5`."""
    place = None if where.counted is None else where.counted.position
    if where.counted is None or place is None or ASIDE.search(line):
        return False
    is_bracketed = line.endswith(("]:", "]")) and line.rfind("[") < place.start
    return is_bracketed or where.counted.is_global


def _trains(line: str, pairs: PairsForm) -> bool:
    """Whether a line of metrics marks them as the training's."""
    is_so = any(name.is_measure and name.text.startswith("train") for name, _ in pairs.named)
    return is_so or bool(_TRAINING.search(line, 0, pairs.first))


def _aside_form(line: str, first: int) -> Optional[EvaluationMark]:
    """Return the mark of an evaluation before the first measure, None without one."""
    aside = ASIDE.search(line, 0, first)
    if aside is None:
        return EvaluationMark(None, is_doubtful=True) if OF_EVALUATION.search(line) else None
    part = _PART.search(line, aside.start(), first)
    parts = (slice(*part.span(1)), slice(*part.span(2))) if part else None
    return EvaluationMark(parts, bool(_OWN_COUNT.match(line, aside.end()) or "_" in aside[0]))
