"""Read progress bars of tqdm, Keras, ultralytics and rich, with the numbers beside them.

 33%|###3      | 100/300 [00:10<00:20, 9.9it/s, loss=2.31]
Epoch 0:  50%|#####     | 5/10 [00:01<00:01,  4.5it/s, v_num=0, train_loss=2.310]
10/10 [==============================] - 1s 20ms/step - loss: 2.3012 - accuracy: 0.1
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Iterable, Iterator, List, Match, NamedTuple, Optional, Pattern, Tuple

from .log_names import Name, meaning
from .log_pairs import NUMBER, OF, PAIR, number
from .log_steps import Count, own_step

_TQDM = re.compile(r"%\|[^|]{0,400}\|\s{0,4}(\d{1,15})/(\d{1,15})\s{0,3}\[(?P<inside>[^\]]{0,4000})\]?")
_DRAWN = re.compile(r"\d{1,3}% [━─╸]{12} (\d{1,15})/(\d{1,15}) (?P<inside>.{0,80})")  # ultralytics
_COUNTED = re.compile(r"(\d{1,15})it \[(?P<inside>\d[\d:]{2,11}, [^\][]{0,4000})\]")  # tqdm without a total
_KERAS = re.compile(r"\s{0,4}(\d{1,12})/(\d{1,12}) (?:\[[=>.]{10,60}\](?: - )?|[━─╸╺ ]{8,60})(.{0,2000})")
_RICH = re.compile(r"(Epoch (\d{1,9})/-?\d{1,9}\s{1,3})[━─╸╺ ]{5,200}\s?(\d{1,12})/(\d{1,12}) (.{0,2000})")
_POSTFIX = re.compile(
    r"(?:^|[,\s|])\s{0,3}([A-Za-z][\w/.@ -]{0,60}?)\s{0,2}[=:]\s{0,3}(?:tensor\(|[\['\"])?(?P<number>"
    + NUMBER
    + r")(?![\w.]|,\d|"
    + OF
    + r"\d)"
)
_DIGITS = re.compile(r"[-+]?\d[\d.,e+-]*|\bnan\b|\binf\b")
_EPOCH = re.compile(
    r"\s{0,8}(?:train(?:ing)?\W{1,3})?epochs?\s{0,2}[:#\[(]{0,2}\s{0,2}(\d{1,9})(?:\s?/\s?(\d{1,9}))?",
    re.IGNORECASE,
)
_EPOCH_BESIDE = re.compile(r"(?<![\w/.-])epoch\s?[:=]\s?(\d{1,9})(?:\s?/\s?(\d{1,9}))?", re.IGNORECASE)
_TORCHTUNE = re.compile(r"\d{1,9}\|(\d{1,15})\|(.{1,200})")  # epoch, step, loss
_UNITS = r"(?:epoch|sample|image|img|example|ex|token|tok|sentence|seq|row|doc|file|word|pair)s?"
_OF_OTHERS = re.compile(r"\d\s?" + _UNITS + r"/s\b|\ds/" + _UNITS + r"\b", re.IGNORECASE)
_EPOCHS = re.compile(r"\bepochs\b|\bepoch$", re.IGNORECASE)
_RATE = re.compile(r"^[^,]{0,40}(?:,\s{0,6}[^,=]{1,20})?")
_SEPARATORS = re.compile(r"\s-\s|\s{2,}")
_NUMBER = re.compile(NUMBER)
_RICH_PAIR = re.compile(r"([A-Za-z][\w/.-]{0,60}): (?P<number>" + NUMBER + r")(?!\S)")
_MAX_DRAWN = 400
DRAWN = "% \u2501", "% \u2500"
"""What stands before the drawn part of ultralytics' bar."""
_NOTHING = slice(0, 0)
_UNKNOWN = -1


class Bar(NamedTuple):
    """A progress bar: the text before it, its position and length, the epoch it names, and its numbers.

    `key` identifies a bar. If `is_of_others`, the bar advances by epochs or samples, so its position is not a
    step. `is_lightning` marks a bar with text that only Lightning writes. `rest` is the text behind the bar
    on the same line.
    """

    title: str
    position: int
    length: Optional[int]
    epoch: Optional[int]
    pairs: List[Tuple[Name, float]]
    own_step: Optional[Count]
    is_lightning: bool
    postfix: str
    rest: str
    is_of_others: bool = False

    @property
    def name(self) -> str:
        """The title without its numbers."""
        return _DIGITS.sub("", self.title)[:60].strip().lower()

    @property
    def key(self) -> str:
        """An identifier that is the same for all states of a bar, and for the bars of all epochs."""
        return "bar %s/%s" % (self.name, self.length)


class _Numbers(NamedTuple):
    """The names beside a bar with the positions of their numbers, and of a step if the bar shows one.

    `is_global` is False for a step that may count from the start of an epoch.
    """

    named: Tuple[Tuple[Name, slice], ...]
    step: Optional[slice]
    is_global: bool = False


class BarForm(NamedTuple):
    """The positions of the parts of a bar in a line. If `is_titled`, the bar's title may contain numbers too."""

    title: slice
    position: slice
    length: Optional[slice]
    epoch: Optional[slice]
    numbers: _Numbers
    postfix: slice
    rest: slice = _NOTHING
    is_lightning: bool = False
    is_titled: bool = False
    is_of_others: bool = False
    shown_epoch: Optional[slice] = None
    epochs: Optional[slice] = None

    def of(self, line: str) -> Bar:
        """Return the bar of a line of this form."""
        title, postfix = line[self.title], line[self.postfix]
        epoch = None if self.epoch is None else int(line[self.epoch])
        own = self.numbers.step
        position = int(line[self.position])
        return Bar(
            title,
            position,
            None if self.length is None else int(line[self.length]),
            epoch,
            [(name, number(line[where])) for name, where in self.numbers.named],
            None if own is None else Count("beside", _step(line[own]), None, epoch, self.numbers.is_global),
            self.is_lightning,
            "%s, %s" % (title, postfix) if self.is_titled else postfix,
            line[self.rest],
            self.is_of_others or self._counts_epochs(line, position),
        )

    def _counts_epochs(self, line: str, position: int) -> bool:
        """Whether the bar counts epochs: the script prints its length as their number, or its position as the epoch."""
        if self.epochs is not None and self.length is not None:
            return int(line[self.epochs]) == int(line[self.length])
        return self.shown_epoch is not None and abs(int(line[self.shown_epoch]) - position) <= 1


def _step(text: str) -> Optional[int]:
    value = number(text)
    return int(value) if 0 <= value < 2**53 else None


def without_drawing(line: str) -> str:
    """Return a line without the drawn part of a tqdm bar.

    The forms of lines are cached, and the drawn part has a different form for each column.
    """
    begin = line.find("%|") + 2
    end = line.find("|", begin)
    return line[:begin] + line[end:] if begin >= 2 and 0 <= end - begin <= _MAX_DRAWN else line


def bar_form(line: str) -> Optional[BarForm]:
    """Return the form of the tqdm bar of a line, None if it has none."""
    place = line.find("%|")
    if place >= 0:
        match = _TQDM.match(line, place)
        if not match:
            return None
        end = len(line[:place].rstrip("0123456789").rstrip().rstrip(":"))
        title = slice(max(0, end - 300), end)
        return _tqdm(line, match, title, _at(match, 1), _at(match, 2))
    drawn = _DRAWN.search(line) if any(mark in line for mark in DRAWN) else None
    if drawn:
        title = slice(0, len(line[: drawn.start()].rstrip().rstrip(":")))
        return _tqdm(line, drawn, title, _at(drawn, 1), _at(drawn, 2))
    counted = _COUNTED.search(line) if "it [" in line else None
    before = line[: counted.start()].rstrip() if counted else ""
    if counted and (not before or before.endswith(":")):
        end = len(before.rstrip(":"))
        return _tqdm(line, counted, _stripped(line, slice(max(0, end - 80), end)), _at(counted, 1), None)
    rich = _RICH.match(line) if "━" in line else None
    if rich:
        postfix = _at(rich, 5)
        numbers = _numbers(_pairs(_RICH_PAIR, line, postfix), *own_step(line, postfix.start, postfix.stop))
        return BarForm(
            slice(0, len("Epoch")),
            _at(rich, 3),
            _at(rich, 4),
            _at(rich, 2),
            numbers,
            is_lightning=True,
            postfix=postfix,
        )
    return None


def _tqdm(line: str, match: Match[str], title: slice, position: slice, length: Optional[slice]) -> BarForm:
    """Return the form of a bar; the group `inside` of the match is the text in its brackets."""
    rest = slice(match.end(), len(line))
    torchtune = _TORCHTUNE.match(line, title.start, title.stop)
    if torchtune:
        described = _at(torchtune, 2)
        numbers = _numbers(_pairs(_POSTFIX, line, described), _at(torchtune, 1), is_global=True)
        return BarForm(_NOTHING, position, length, None, numbers, postfix=described, rest=rest)
    inside = slice(*match.span("inside"))
    postfix = slice(inside.start + _end_of_rate(match["inside"]), inside.stop)
    # A script may write changing numbers into the description, as into a postfix.
    is_titled = "loss" in line[title].lower()
    found = _pairs(_POSTFIX, line, postfix)
    if is_titled:
        found = itertools.chain(_pairs(PAIR, line, title), found)
    epoch = _EPOCH.match(line, title.start, title.stop)
    beside = _EPOCH_BESIDE.search(line, postfix.start, postfix.stop)
    shown = beside or (epoch if is_titled else None)
    total = beside or epoch
    begin = title.start if is_titled else postfix.start
    return BarForm(
        title,
        position,
        length,
        _at(epoch, 1) if epoch else None,
        _numbers(found, *own_step(line, begin, postfix.stop)),
        is_lightning="v_num=" in line[postfix],
        is_titled=is_titled,
        postfix=postfix,
        rest=rest,
        is_of_others=bool(_OF_OTHERS.search(match["inside"], 0, 100) or _EPOCHS.search(line[title])),
        shown_epoch=_at(shown, 1) if shown else None,
        epochs=_at(total, 2) if total and total[2] else None,
    )


def _at(match: Match[str], group: int) -> slice:
    """Return the position of a group of a match."""
    return slice(*match.span(group))


def _stripped(line: str, part: slice) -> slice:
    """Return a part of a line without spaces around it."""
    text = line[part]
    return slice(part.stop - len(text.lstrip()), part.start + len(text.rstrip()))


def _end_of_rate(inside: str) -> int:
    """Return where the postfix begins: after `00:10<00:20, 9.9it/s`."""
    rate = _RATE.match(inside)
    return rate.end() if rate else 0


def _pairs(pattern: Pattern[str], line: str, part: slice) -> Iterator[Tuple[str, slice]]:
    """Yield the names in a part of a line, and the positions of their numbers."""
    for match in pattern.finditer(line[part]):
        begin, end = match.span("number")
        yield match[1], slice(part.start + begin, part.start + end)


def _numbers(
    found: Iterable[Tuple[str, slice]], step: Optional[slice] = None, is_global: bool = False
) -> _Numbers:
    """Keep the names with a known meaning."""
    named: List[Tuple[Name, slice]] = []
    for words, place in itertools.islice(found, 200):
        name = meaning(words.strip())
        if name is not None:
            named.append((name, place))
    return _Numbers(tuple(named), step, is_global)


def keras_form(line: str) -> Optional[BarForm]:
    """Return the form of the Keras bar of a line, None if it has none."""
    match = _KERAS.match(line)
    if not match:
        return None
    fields = _at(match, 3)
    numbers = _numbers(_fields(line, fields))
    return BarForm(_NOTHING, _at(match, 1), _at(match, 2), None, numbers, postfix=fields)


def _fields(line: str, part: slice) -> Iterator[Tuple[str, slice]]:
    """Yield the names of fields `name: number`, and the positions of their numbers."""
    begin = part.start
    separators = [match.span() for match in _SEPARATORS.finditer(line, part.start, part.stop)]
    for end, after in (*separators, (part.stop, part.stop)):
        words, colon, value = line[begin:end].partition(": ")
        if colon and _NUMBER.fullmatch(value.strip()):
            yield words, _stripped(line, slice(begin + len(words) + len(colon), end))
        begin = after


class Shown(NamedTuple):
    """Numbers beside a bar, the state in which they appeared, and their step if it is known."""

    bar: Bar
    pairs: List[Tuple[Name, float]]
    step: Optional[int]


class _Held(NamedTuple):
    """Numbers that appeared before the bar advanced.

    `drawn` counts how often the bar had then been drawn at its position.
    """

    bar: Bar
    pairs: List[Tuple[Name, float]]
    drawn: int


class BarPasses:
    """The steps of one bar that has a loss beside it, over all its passes.

    The numbers appear before the bar advances (`set_postfix` inside a loop over it) or after (`update`, then
    `set_postfix`). The first numbers show which: at position 0 they appear before. Such numbers are held
    until the bar advances: a fast loop over tqdm shows several of them at one position, then advances by
    their number. If this is unclear, or if a pass ended early, steps are None.
    """

    def __init__(self) -> None:
        """Begin before the first state of the bar."""
        self._ran: Optional[int] = 0
        self._position = -1
        self._ahead: Optional[int] = None
        self._trained: List[Tuple[Name, str]] = []
        self._own: Optional[int] = None
        self._evaluated: List[Tuple[Name, str]] = []
        self._epoch: Optional[int] = None
        self._held: List[_Held] = []
        self._drawn = 0

    def take(self, bar: Bar) -> List[Shown]:
        """Take a state of the bar; return the numbers whose step is decided, an evaluation's separately."""
        trained = [pair for pair in bar.pairs if not pair[0].is_evaluation]
        written = _written(trained)
        is_training = any(name.is_measure for name, _ in trained)
        own = None if bar.own_step is None else bar.own_step.position
        is_new = is_training and (written != self._trained or own != self._own)
        moved = bar.position - self._position
        shown: List[Shown] = []
        is_reset = bar.position == 0 < self._position and bar.epoch is not None and bar.epoch == self._epoch
        if is_reset and not is_new:
            return []  # Lightning draws the bar of an epoch at 0 once more before that of the next epoch
        if moved < 0 or bar.epoch != self._epoch:
            shown, moved = self.give_up(), 0
            self._restart(bar)
        elif moved:
            shown = self._settle(moved, is_changed=is_new)
        self._position = bar.position
        if is_training and (is_new or not moved):
            self._drawn += 1
        if is_new:
            self._trained, self._own = written, own
            shown += self._show(bar, trained)
        evaluated = [pair for pair in bar.pairs if pair[0].is_evaluation]
        if evaluated and _written(evaluated) != self._evaluated:
            self._evaluated = _written(evaluated)
            shown.append(Shown(bar, evaluated, self._step(0) if self._ahead == 0 else None))
        return shown

    def give_up(self) -> List[Shown]:
        """Return the numbers whose step is undecided, without a step."""
        held, self._held, self._drawn = self._held, [], 0
        return [Shown(bar, pairs, None) for bar, pairs, _ in held]

    def _show(self, bar: Bar, pairs: List[Tuple[Name, float]]) -> List[Shown]:
        """Return new numbers, or hold them until the bar advances."""
        if self._ahead is None:
            is_ahead = bar.position == 0 and not bar.is_lightning
            is_exact = bar.position == 1 or bar.is_lightning
            self._ahead = 1 if is_ahead and not _is_placeholder(pairs) else 0 if is_exact else _UNKNOWN
        if self._ahead == 1 and bar.own_step is None:
            self._held.append(_Held(bar, pairs, self._drawn))
            return []
        return [Shown(bar, pairs, self._step(0) if self._ahead == 0 else None)]

    def _settle(self, moved: int, *, is_changed: bool) -> List[Shown]:
        """Return the held numbers after the bar has moved. `is_changed`: the bar shows new numbers in its new state."""
        drawn, last = self._drawn, self._held[-1:]
        if (
            self._held and is_changed and moved > 1
        ):  # the bar does not count steps, or the numbers were shown before the first step
            self._ahead = _UNKNOWN
        elif self._held and (is_changed or drawn > moved):
            self.give_up()
            return [Shown(one.bar, one.pairs, self._step(moved)) for one in last]
        elif drawn == moved:
            shown = [Shown(one.bar, one.pairs, self._step(one.drawn)) for one in self._held]
            self.give_up()
            return shown
        return self.give_up()

    def _step(self, beyond: int) -> Optional[int]:
        """Return the step at the bar's position, or `beyond` steps later."""
        return None if self._ran is None else self._ran + self._position + beyond

    def _restart(self, bar: Bar) -> None:
        """Begin another pass. It continues the count of steps if the previous pass was complete."""
        is_first = self._position < 0
        is_complete = bar.length is not None and self._position == bar.length
        is_next = bar.epoch is None or self._epoch is None or bar.epoch == self._epoch + 1
        if is_first:
            self._ran = 0 if bar.epoch in (None, 0) or (bar.epoch == 1 and not bar.is_lightning) else None
        elif self._ran is not None:
            self._ran = self._ran + (bar.length or 0) if is_complete and is_next else None
        self._epoch = bar.epoch


def _is_placeholder(pairs: List[Tuple[Name, float]]) -> bool:
    """Whether the numbers may be placeholders that a script wrote before it had any."""
    return all(not value or not math.isfinite(value) for name, value in pairs if name.is_measure)


def _written(pairs: List[Tuple[Name, float]]) -> List[Tuple[Name, str]]:
    """Return numbers as text, where nan equals nan."""
    return [(name, repr(value)) for name, value in pairs]
