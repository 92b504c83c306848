"""Find the training step of a log line, also if the line counts from the start of an epoch.

A *count* is the position in the training that a line prints: a name (`step`, `iter`, `batch`), a number, and
sometimes a length and an epoch. A `StepCounter` turns the counts of one name into steps. It gives up for good
if the log contradicts itself: an unknown step is None, never a guess.

    step 10 · iter: 19 · iteration      100/  500000 · global_step=9      the step
    Epoch: [3][ 50/100] · epoch 3 | 50/100 batches · Epoch 3, batch 50/100   (3 - first epoch) * 100 + 50
    Train Epoch: 3 [640/60000 (1%)]                                        None: these are samples
    Epoch 3: loss 0.5                                                      None: an epoch is not a step
"""

from __future__ import annotations

import re
from typing import Dict, NamedTuple, Optional, Tuple

MAX_STEP = 2**53
_GLOBAL = ("global step", "global_step", "num_updates", "globalstep", "optimizer step", "optimizer_step")
_WHOLE = r"(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})"
_COUNT = re.compile(
    r"(?<![\w/.<-])(global[ _]?step|num_updates|optimizer[ _]step|(?:train(?:ing)? |mini-?)?(?:step|iteration|iter|itr|update|batch|it))"
    r"(?:\(\w{1,12}\)|\]|\s?#)?\s{0,3}[:=]?\s{0,12}[\[(]?\s{0,12}(?!\d{1,3}[ '\u00a0\u202f]\d{3}(?![\d.]))"
    + _WHOLE
    + r"(?:\.0{1,6})?(?:\s{0,3}(?:/|of\b)\s{0,12}"
    + _WHOLE
    + r")?(?![\w%]|[.,:]\d|\s?(?:ms|s|sec|it)\b)",
    re.IGNORECASE,
)
# Words before a count that is not the training's position, as in `tokens per step: 4096`.
_OTHER_COUNT = re.compile(
    r"\b(?:max|total|num|last|best|next|start|of|per|every|each|micro|accumulation|inner|diffusion|denoising|sampling)\s\Z",
    re.IGNORECASE,
)
_OTHER_EPOCH = re.compile(r"\b(?:max|total|num|number of|last|best|per|every|each)\s\Z", re.IGNORECASE)
_EPISODE = re.compile(r"\bepisode\s{0,2}[:#=]?\s{0,4}\d", re.IGNORECASE)
_EPOCH = re.compile(
    r"(?<![\w/.-])(?:epochs?(?:\((\w{1,10})\))?\s{0,3}[:=#]?\s{0,6}[\[(]?\s{0,6}(\d{1,9})(?!\d|,\d|e[-+]?\d)(?:\.(\d{1,9}))?(?:\s?(?:/|of\b)\s{0,3}(\d{1,9}))?[\])]?"
    r"|(\d{1,6})epoch(?::|\b))",
    re.IGNORECASE,
)
_INNER = re.compile(
    r"\s{0,3}[:,|-]?\s{0,3}[\[(]?\s{0,12}(\d{1,12})\s{0,3}/\s{0,12}(\d{1,12})(?![\d./])\s{0,2}"
    r"(\(\s{0,4}\d{1,3}(?:\.\d{1,4})?%\)|(?:sample|image|img|example|sentence|seq|token|file|frame|row|fold|gpu|node|correct)s?\b)?",
    re.IGNORECASE,
)
_BATCHES = re.compile(r"(?<![\w./-])(\d{1,12})\s{0,3}/\s{0,8}(\d{1,12})\s{1,3}(?:mini)?batches\b")
_PAIR = re.compile(r"\[\s?(\d{1,9}),\s{1,8}(\d{1,12})\]\s")
_ROUND = re.compile(r"\[?(\d{1,9})(?:\]|:)\t")  # xgboost, LightGBM; `3:` of CatBoost
_TIMM = re.compile(
    r"Train(?:ing)?: (\d{1,9})(?:/\d{1,9})? \[\s{0,12}(\d{1,12})/(\d{1,12})\s{1,3}\(\s{0,3}\d{1,3}%\)\]"
)


class Count(NamedTuple):
    """The position in the training that a line prints.

    `name` identifies the counter: counters must not be mixed. `beside` names other counters in the line.
    """

    name: str
    position: Optional[int]
    length: Optional[int] = None
    epoch: Optional[int] = None
    is_global: bool = False
    is_within: bool = False
    beside: Tuple[str, ...] = ()


class LinePosition(NamedTuple):
    """The count of a line and its epoch, which may be a fraction; each is None if the line has none."""

    counted: Optional[Count]
    epoch: Optional[float]


NOWHERE = LinePosition(None, None)


class _CountForm(NamedTuple):
    """The columns of the parts of a line's count."""

    name: str
    position: Optional[slice]
    length: Optional[slice] = None
    is_global: bool = False
    is_within: bool = False
    beside: Tuple[str, ...] = ()


class PositionForm(NamedTuple):
    """The columns of a line's count and epoch.

    `fraction` covers the digits after the decimal point of a fractional epoch.
    """

    counted: Optional[_CountForm]
    epoch: Optional[slice] = None
    fraction: Optional[slice] = None

    def of(self, line: str) -> LinePosition:
        """Return the training position of a line of this form."""
        form, whole, shown = self.counted, None, None
        if self.epoch is not None:
            if self.fraction is None:
                whole = int(line[self.epoch])
                shown = float(whole)
            else:
                shown = float("%s.%s" % (line[self.epoch], line[self.fraction]))
        if form is None:
            return NOWHERE if shown is None else LinePosition(None, shown)
        position = None if form.position is None else int(line[form.position].replace(",", ""))
        length = None if form.length is None else int(line[form.length].replace(",", ""))
        return LinePosition(Count(form.name, position, length, whole, *form[3:]), shown)


def place_form(line: str) -> PositionForm:
    """Return the columns of the count and the epoch in a line of free text."""
    timm = _TIMM.match(line) if line.startswith("Train") else None
    if timm:
        return PositionForm(_CountForm("train", _at(timm, 2), _at(timm, 3), is_within=True), _at(timm, 1))
    bracketed = line.startswith("[")
    pair = _PAIR.match(line) if bracketed else None
    if pair:  # PyTorch's tutorial: [epoch, batch] without the length of an epoch
        return PositionForm(_CountForm("batch", _at(pair, 2), is_within=True), _at(pair, 1))
    boosted = _ROUND.match(line) if bracketed or line[:1].isdigit() else None
    if boosted:
        return PositionForm(_CountForm("round", _at(boosted, 1)))
    found = next((match for match in _EPOCH.finditer(line) if not _follows(_OTHER_EPOCH, match)), None)
    counted = _counted(line)
    if counted is not None and not counted.is_global and _EPISODE.search(line):
        counted = None  # a step of an episode
    if not found:
        return PositionForm(counted)
    if counted is None or counted.is_within:  # else the script prints a step of its own
        counted = _inner(line, found) or counted
    return PositionForm(counted, _at(found, 2) or _at(found, 5), _at(found, 3))


def _follows(words: "re.Pattern[str]", match: "re.Match[str]") -> bool:
    """Whether one of these words stands before a match."""
    return bool(words.search(match.string, max(0, match.start() - 16), match.start()))


def _at(match: "re.Match[str]", group: int) -> Optional[slice]:
    """Return the columns of a group of a match, None if the group did not match."""
    begin, end = match.span(group)
    return None if begin < 0 else slice(begin, end)


def _inner(line: str, found: "re.Match[str]") -> Optional[_CountForm]:
    """Return the columns of the count that follows an epoch's number, as in `Epoch: [3][ 50/100]`."""
    batches = _BATCHES.search(line)
    if batches:
        return _CountForm("batches", _at(batches, 1), _at(batches, 2), is_within=True)
    inner = _INNER.match(line, found.end())
    if not inner:
        return None
    if inner[3]:  # `Train Epoch: 1 [640/60000 (1%)]` counts samples
        return _CountForm("samples", None, is_within=True)
    return _CountForm("epoch/batch", _at(inner, 1), _at(inner, 2), is_within=True)


_RANKS = {"step": 3, "update": 2, "batch": 0, "mini batch": 0, "minibatch": 0}


def own_step(line: str, begin: int, end: int) -> Tuple[Optional[slice], bool]:
    """Return the columns of a step in a part of a line, and whether it cannot count from the start of an epoch."""
    counted = _counted(line, begin, end)
    return (None, False) if counted is None or counted.is_within else (counted.position, counted.is_global)


def _counted(line: str, begin: int = 0, end: int = MAX_STEP) -> Optional[_CountForm]:
    best: Optional[_CountForm] = None
    names: Tuple[str, ...] = ()
    for match in _COUNT.finditer(line, begin, end):
        if _follows(_OTHER_COUNT, match):
            continue
        name = match[1].lower().replace("_", " ")
        names = (*names, name)
        is_global = name in _GLOBAL
        is_within = "batch" in name
        count = _CountForm(name, _at(match, 2), _at(match, 3), is_global, is_within)
        if is_global or best is None or _RANKS.get(best.name, 1) < _RANKS.get(name, 1):
            best = count
        if is_global:
            break
    if best is None or len(names) == 1:
        return best
    return best._replace(beside=tuple(name for name in names if name != best.name))


_KEYS = {
    "global_step": True,
    "global_step/max_steps": True,
    "num_updates": True,
    "train_num_updates": True,
    "valid_num_updates": True,
    "train/global_step": True,
    "trainer/global_step": True,
    "current_steps": True,
    "num_steps": False,
    "step": False,
    "_step": False,
    "steps": False,
    "iteration": False,
    "iter": False,
    "it": False,
    "update": False,
    "updates": False,
    "training/global_step": True,
    "total_timesteps": True,
}


def place_of_dict(pairs: Dict[str, str]) -> LinePosition:
    """Return the training position in a printed dict or JSON object."""
    if _KEYS.keys().isdisjoint(pairs):
        return NOWHERE
    epoch = _whole(pairs.get("epoch", ""))
    for key, is_global in _KEYS.items():
        position = _whole(pairs[key].partition("/")[0]) if key in pairs else None
        if position is not None:
            # If the epoch is a whole number, the step may count from the start of that epoch.
            within = epoch if "." not in pairs.get("epoch", ".") else None
            return LinePosition(Count(key, position, None, within, is_global), None)
    return NOWHERE


def _whole(text: str) -> Optional[int]:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value <= MAX_STEP and value == int(value) else None


class StepCounter:
    """The steps of one counter. `is_lost` is set once the log has contradicted itself."""

    def __init__(self) -> None:
        """Begin before the first count."""
        self.is_lost = False
        self._first_epoch: Optional[int] = None
        self._epoch: Optional[int] = None
        self._position = -1
        self._length: Optional[int] = None
        self._is_within: Optional[bool] = None
        self._edge: Optional[int] = None

    def step(self, count: Count) -> Optional[int]:
        """Return the step of the next count, None if it is unknown."""
        position = count.position
        if position is None or position > MAX_STEP or self.is_lost:
            return None
        if count.is_within and count.epoch is None:
            return None  # a batch of an unknown epoch
        if count.epoch is None or count.is_global:
            # A decreasing step counts something else: an epoch, a second training, another rank.
            self.is_lost = position < self._position
            self._position = position
            return None if self.is_lost else position
        self._enter(count, count.epoch, position)
        self._position = position
        if self.is_lost:
            return None
        if not self._is_within:
            is_first = self._first_epoch in (0, 1) and self._edge is None
            return position if self._is_within is False or is_first else None
        return self._from_the_first(count, count.epoch, position)

    def step_aside(self, count: Count, *, is_doubtful: bool) -> Optional[int]:
        """Return the step of an evaluation's count. It never affects how later counts are read.

        If `is_doubtful`, the count may be one of the evaluation's own steps (`eval step 10`): it is then used only
        if it equals the training's position.
        """
        position = count.position
        if position is None or position > MAX_STEP or self.is_lost or count.is_within:
            return None
        if position < self._position or (is_doubtful and position != self._position):
            return None
        if self._is_within and count.epoch is not None:
            return None
        return position

    def _enter(self, count: Count, epoch: int, position: int) -> None:
        """Compare a count with the previous one.

        The first count in a later epoch shows whether positions restart with each epoch.
        """
        if self._first_epoch is None or self._epoch is None:
            self._first_epoch = self._epoch = epoch
            self._is_within = True if count.is_within else None
        elif epoch < self._epoch or (epoch == self._epoch and position < self._position):
            self.is_lost = True
        elif epoch > self._epoch:
            self._epoch = epoch
            if self._is_within is None and position != self._position:
                self._is_within = position < self._position
            elif self._is_within is None:
                self._edge = position  # the same step, or the same position in the next epoch
            elif not self._is_within and position <= self._position:
                self.is_lost = True
        elif self._is_within is None and self._edge is not None and position > self._edge:
            self._is_within = False
        if self._is_within:
            is_beyond = (
                count.length is not None and position > count.length
            )  # the length was only an estimate
            is_other = self._length is not None and self._length != count.length
            self.is_lost = self.is_lost or is_beyond or is_other
            self._length = count.length

    def _from_the_first(self, count: Count, epoch: int, position: int) -> Optional[int]:
        if self._first_epoch not in (0, 1):
            return None  # unknown whether epochs begin at 0 or 1
        ran = epoch - self._first_epoch
        if count.length is None:
            return None
        return ran * count.length + position
