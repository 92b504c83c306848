"""Read progress bars: tqdm's, Keras', ultralytics' and rich's, with the numbers beside them.

 33%|###3      | 100/300 [00:10<00:20, 9.9it/s, loss=2.31]
Epoch 0:  50%|#####     | 5/10 [00:01<00:01,  4.5it/s, v_num=0, train_loss=2.310]
10/10 [==============================] - 1s 20ms/step - loss: 2.3012 - accuracy: 0.1
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Tuple

from .log_names import Name, meaning
from .log_pairs import NUMBER, number

_TQDM = re.compile(r"%\|[^|]{0,400}\|\s{0,4}(\d{1,15})/(\d{1,15})\s{0,3}\[([^\]]{0,4000})(\]?)")
_COUNTED = re.compile(
    r"(?:^|(.{0,80}?): )\s{0,8}(\d{1,15})it \[(\d[\d:]{2,11}, [^\]]{0,4000})\]"
)  # tqdm without a total
_KERAS = re.compile(r"\s{0,4}(\d{1,12})/(\d{1,12}) (?:\[[=>.]{10,60}\](?: - )?|[━─╸╺ ]{8,60})(.{0,2000})")
_RICH = re.compile(r"(Epoch (\d{1,9})/-?\d{1,9}\s{1,3})[━─╸╺ ]{5,200}\s?(\d{1,12})/(\d{1,12}) (.{0,2000})")
_POSTFIX = re.compile(
    r"(?:^|[,\s|])\s{0,3}([A-Za-z][\w/.@ -]{0,60}?)\s{0,2}[=:]\s{0,3}(?:tensor\(|[\['\"])?("
    + NUMBER
    + r")(?![\w.])"
)
_DIGITS = re.compile(r"[-+]?\d[\d.,e+-]*|\bnan\b|\binf\b")
_EPOCH = re.compile(
    r"\s{0,8}(?:train(?:ing)?\W{1,3})?epochs?\s{0,2}[:#\[(]{0,2}\s{0,2}(\d{1,9})", re.IGNORECASE
)
_TORCHTUNE = re.compile(r"\d{1,9}\|(\d{1,15})\|(.{1,200})")  # epoch, step, loss
_OF_EPOCHS = re.compile(r"\d\s?epochs?/s\b|\ds/epochs?\b")
_EPOCHS = re.compile(r"\bepochs\b|\bepoch$", re.IGNORECASE)
_RATE = re.compile(r"^[^,]{0,40}(?:,\s{0,6}[^,=]{1,20})?")
_SEPARATORS = re.compile(r"\s-\s|\s{2,}")


class Bar(NamedTuple):
    """A progress bar: what stands before it, its position and length, the epoch it names, and the numbers beside it.

    `key` tells bars apart. `is_of_epochs`: it advances by epochs, so its position is no step. `is_lightning` is known by what only Lightning writes beside a bar. `rest` is what follows it on the same line.
    """

    title: str
    position: int
    length: Optional[int]
    epoch: Optional[int]
    pairs: List[Tuple[Name, float]]
    own_step: Optional[int]
    is_lightning: bool
    postfix: str
    rest: str
    is_of_epochs: bool = False

    @property
    def key(self) -> str:
        """What is the same for all states of a bar, and for the bars of all epochs."""
        return "bar %s/%s" % (_DIGITS.sub("", self.title)[:60].strip().lower(), self.length)


def bar_of(line: str) -> Optional[Bar]:
    """Return the tqdm bar of a line, None if it has none."""
    place = line.find("%|")
    if place >= 0:
        match = _TQDM.match(line, place)
        if not match:
            return None
        title = line[:place].rstrip("0123456789").rstrip().rstrip(":")
        return _bar(title[-300:], int(match[1]), int(match[2]), match[3], line[match.end() :])
    counted = _COUNTED.search(line) if "it [" in line else None
    if counted:
        return _bar((counted[1] or "").strip(), int(counted[2]), None, counted[3], line[counted.end() :])
    rich = _RICH.match(line) if "━" in line else None
    if rich:
        pairs, own = _numbers(_rich_pairs(rich[5]))
        return Bar("Epoch", int(rich[3]), int(rich[4]), int(rich[2]), pairs, own, True, rich[5], "")
    return None


def _bar(title: str, position: int, length: Optional[int], inside: str, rest: str) -> Bar:
    torchtune = _TORCHTUNE.match(title)
    if torchtune:
        pairs, _ = _numbers(_POSTFIX.findall(torchtune[2]))
        return Bar("", position, length, None, pairs, int(torchtune[1]), False, torchtune[2], rest)
    postfix = inside[_end_of_rate(inside) :]
    # What a script writes into the description changes as a postfix does.
    written = "%s, %s" % (title, postfix) if "loss" in title.lower() else postfix
    pairs, own = _numbers(_POSTFIX.findall(written)) if "=" in written or ":" in written else ([], None)
    found = _EPOCH.match(title)
    epoch = int(found[1]) if found else None
    is_of_epochs = bool(_OF_EPOCHS.search(inside, 0, 100) or _EPOCHS.search(title))
    return Bar(title, position, length, epoch, pairs, own, "v_num=" in postfix, written, rest, is_of_epochs)


def _end_of_rate(inside: str) -> int:
    """Return where the postfix begins: after `00:10<00:20, 9.9it/s`."""
    rate = _RATE.match(inside)
    return rate.end() if rate else 0


def _rich_pairs(text: str) -> List[Tuple[str, str]]:
    """Return the pairs of Lightning's rich bar: `0:00:01 • 0:00:02 4.50it/s v_num: 0.000 train_loss: 2.310`."""
    return [
        (name, value) for name, value in re.findall(r"([A-Za-z][\w/.-]{0,60}): (" + NUMBER + r")(?!\S)", text)
    ]


def _numbers(found: List[Tuple[str, str]]) -> Tuple[List[Tuple[Name, float]], Optional[int]]:
    pairs: List[Tuple[Name, float]] = []
    own = None
    for words, text in found[:200]:
        if words.strip().lower() in ("global_step", "global step"):
            value = number(text)
            own = int(value) if 0 <= value < 2**53 else None
            continue
        name = meaning(words.strip())
        if name is not None:
            pairs.append((name, number(text)))
    return pairs, own


def keras_of(line: str) -> Optional[Bar]:
    """Return the Keras bar of a line, None if it has none."""
    match = _KERAS.match(line)
    if not match:
        return None
    found = []
    for field in _SEPARATORS.split(match[3]):
        words, colon, value = field.partition(": ")
        if colon and re.fullmatch(NUMBER, value.strip()):
            found.append((words.strip(), value.strip()))
    pairs, _ = _numbers(found)
    return Bar("", int(match[1]), int(match[2]), None, pairs, None, False, match[3], "")


class Passes:
    """The steps of one bar that has a loss beside it, over all its passes.

    The numbers appear before the bar advances (`set_postfix` inside a loop over it) or after (`update`, then
    `set_postfix`). The first of them tells which: at position 0 it must be before. Where it does not tell, or where a
    pass ended early, steps are None.
    """

    def __init__(self) -> None:
        """Begin before the first state of the bar."""
        self._ran: Optional[int] = 0
        self._position = -1
        self._ahead: Optional[int] = None
        self._trained = ""
        self._evaluated = ""
        self._epoch: Optional[int] = None

    def take(self, bar: Bar) -> List[Tuple[List[Tuple[Name, float]], Optional[int]]]:
        """Take a state of the bar; return the numbers that are new, those of an evaluation apart, with their step."""
        if bar.position < self._position or bar.epoch != self._epoch:
            self._restart(bar)
        self._position = bar.position
        trained = [pair for pair in bar.pairs if not pair[0].is_evaluation]
        evaluated = [pair for pair in bar.pairs if pair[0].is_evaluation]
        new = []
        if repr(trained) != self._trained and any(name.is_measure for name, _ in trained):
            self._trained = repr(trained)
            if self._ahead is None:
                self._ahead = 1 if bar.position == 0 else 0 if bar.position == 1 or bar.is_lightning else -1
            is_known = self._ran is not None and self._ahead >= 0
            new.append((trained, (self._ran or 0) + bar.position + self._ahead if is_known else None))
        if evaluated and repr(evaluated) != self._evaluated:
            self._evaluated = repr(evaluated)
            is_known = self._ran is not None and self._ahead == 0
            new.append((evaluated, (self._ran or 0) + bar.position if is_known else None))
        return new

    def _restart(self, bar: Bar) -> None:
        """Begin another pass: it adds to the steps if the one before was complete."""
        is_first = self._position < 0
        is_complete = bar.length is not None and self._position == bar.length
        is_next = bar.epoch is None or self._epoch is None or bar.epoch == self._epoch + 1
        if is_first:
            self._ran = 0 if bar.epoch in (None, 0, 1) else None
        elif self._ran is not None:
            self._ran = self._ran + (bar.length or 0) if is_complete and is_next else None
        self._epoch = bar.epoch
