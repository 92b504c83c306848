"""Read metrics from the log of a script that does not use the worker.

One reader handles all formats: printed dicts, JSON lines, `name: value` and `name value` lines, columns, and
the numbers beside progress bars. A line counts as a metric line if it names a measure, such as a loss or an
accuracy.

A step is taken only from the log; without one it is None. Only transformers' Trainer shows its step in a bar:
it clears the bar, prints its dict, and draws the bar again, which then shows the step of the dict.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from .log_bars import DRAWN, Bar, BarPasses, Shown, bar_form, without_drawing
from .log_boxes import EDGES, BoxReader
from .log_filter import is_likely, is_phase, search_of, words_of
from .log_forms import ASIDE, TextForm, line_form, text_form
from .log_lines import LineSplitter, text_of
from .log_names import Name, aside_name, is_evaluation, is_measure, loss_of, named
from .log_pairs import DictForm, dict_values, floats
from .log_shapes import Shapes
from .log_steps import NOWHERE, Count, LinePosition, StepCounter, place_form, place_of_dict
from .log_tables import Table
from .loss_watch import Divergence, LastLoss, LossWatch

_BARS = (b"%|", *(mark.encode() for mark in DRAWN))
_OF_VALIDATION = re.compile(
    r"(?:loss|losses|errors|metrics)(?: metrics)? (?:are )?on (?:the )?validation set", re.IGNORECASE
)  # MACE's heading above the values of all epochs
_RANKS = ("rank", "global_rank", "local_rank", "process_index")
_NO_LENGTH = -1
_MAX_NAMES = 1000
_MAX_COUNTERS = 64


class LoggedMetric(NamedTuple):
    """The values of a metric line, and its step if the log gives one."""

    step: Optional[int]
    values: Dict[str, float]


class _Pending(NamedTuple):
    """A dict of the Trainer that waits for the next drawing of the bar."""

    values: Dict[str, float]
    line: str
    is_evaluation: bool


class LogScanner:
    """Read a log piece by piece and find its metric lines. Lines longer than MAX_LINE bytes are ignored."""

    def __init__(self) -> None:
        """Start before the first line."""
        self._segments = LineSplitter()
        self._lines = Shapes(line_form)
        self._bars = Shapes(bar_form)
        self._watch = LossWatch()
        self._metrics: List[LoggedMetric] = []
        self._axes: Dict[str, StepCounter] = {}
        self._outranked: Set[str] = set()
        self._passes: Dict[str, BarPasses] = {}
        self._training_bars: Set[str] = set()
        self._unnamed: Optional[str] = None
        self._has_two_lengths = False
        self._counters: Dict[str, str] = {}
        self._table = Table()
        self._box = BoxReader()
        self._pending: Optional[_Pending] = None
        self._trainer_length: Optional[int] = None
        self._trainer_step = -1
        self._is_cleared = False
        self._rank: Optional[str] = None
        self._has_other = False
        self._has_ranks = False
        self._keras_epoch: Optional[int] = None
        self._keras_samples: Optional[int] = None
        self._is_evaluating = False
        self._is_of_validation = False
        self._has_loss = False
        self._head: Optional[LinePosition] = None

    @property
    def divergence(self) -> Optional[Divergence]:
        """The log's first divergence, None before one."""
        return self._watch.divergence

    @property
    def last_loss(self) -> Optional[LastLoss]:
        """The last training loss, None before the first."""
        return self._watch.last

    def feed(self, piece: bytes) -> List[LoggedMetric]:
        """Take the next bytes of the log; return the metrics of the lines that they complete."""
        segments = self._segments.cut(piece)
        low = b"\n".join(segments).lower()
        words = words_of(low)
        is_amid = self._is_evaluating or self._pending or self._table.is_open or self._head is not None
        has_box = self._box.is_open or low.startswith(EDGES) or any(b"\n" + edge in low for edge in EDGES)
        if words or is_amid or has_box or _has_bar(low):
            self._take_all(segments, low.split(b"\n"), words)
        elif segments:
            self._is_cleared = _is_blank(segments[-1])
        metrics, self._metrics = self._metrics, []
        return metrics

    def finish(self) -> List[LoggedMetric]:
        """Return the metrics of the last line, which may be incomplete, and those that still wait for a bar."""
        metrics = self.feed(b"\n")
        self._settle(None)
        self._close_box()
        for passes in self._passes.values():
            self._take_shown(passes.give_up())
        metrics, self._metrics = metrics + self._metrics, []
        return metrics

    def _take_all(self, segments: List[bytes], lowered: List[bytes], words: List[bytes]) -> None:
        search = search_of(words).search if words else _nothing
        for number, segment in enumerate(segments):
            low = lowered[number]
            if self._takes_row(segment):
                continue
            if _has_bar(low):
                if self._pending or self._table.is_open or search(low):
                    self._take_bar(segment, has_words=bool(search(low)))
                self._is_cleared = False
            elif not segment or segment.isspace() or _is_blank(segment):
                self._is_cleared = bool(segment)
            else:
                if self._pending:
                    self._settle(None)
                is_head = self._is_evaluating and b"train" in low and is_phase(low)
                if is_head or self._table.is_open or (search(low) and is_likely(low)):
                    self._take_line(segment)
                elif self._head is not None and segment[:1] not in b" \t":
                    self._head = None
                self._is_cleared = False

    # boxed tables

    def _takes_row(self, segment: bytes) -> bool:
        """Take a row of a boxed table, or end the table; return whether the line is a row."""
        if self._table.is_open or not (self._box.is_open or segment.startswith(EDGES)):
            return False
        is_row = self._box.takes(text_of(segment))
        if not is_row:
            self._close_box()
        return is_row

    def _close_box(self) -> None:
        """Record the numbers of a boxed table that has ended, if it has a measure or a step."""
        rows, is_aside = self._box.close()
        pairs = {name: row.value for name, row in rows.items()}
        full = {name.rpartition("/")[2]: name for name in pairs}
        where = place_of_dict({name: pairs[full[name]] for name in full})
        values = dict(floats(pairs))
        if where.counted is not None:
            del values[full[where.counted.name]]
        elif not any(map(is_measure, values)):
            return
        is_aside = is_aside or all(map(is_evaluation, values))
        step = self._step(where, is_aside=is_aside)
        counter = where.counted.name if where.counted else None
        loss = loss_of(values)
        line = "" if loss is None else rows[loss].line
        if is_aside:
            values = {aside_name(name): value for name, value in values.items()}
        self._record(values, step, counter, line, is_aside=is_aside)

    # bars

    def _take_bar(self, segment: bytes, *, has_words: bool) -> None:
        text = without_drawing(text_of(segment))
        form = self._bars.form(text)
        if form is None:
            return
        bar = form.of(text)
        if self._pending:
            self._settle(bar, is_nested=b"\x1b[A" in segment)
        if self._table.is_open and self._take_row_of(bar):
            return
        if has_words:
            if not self._table.takes_head(bar.title):
                self._take_numbers(bar)
            if bar.rest.strip():
                self._is_cleared = False
                self._take_text(bar.rest, text_form(bar.rest))

    def _take_row_of(self, bar: Bar) -> bool:
        """Take a bar that ends a table row, as ultralytics draws it; return whether the bar is of this kind."""
        row = self._table.row(bar.title)
        if row is None:
            return False
        if bar.position == bar.length and row.place.epoch is not None:
            count = Count("row", bar.position, bar.length, int(row.place.epoch), is_within=True)
            self._emit(row.pairs, LinePosition(count, row.place.epoch), bar.title, is_aside=row.is_evaluation)
        return True

    def _take_numbers(self, bar: Bar) -> None:
        """Take the numbers beside a bar."""
        if not any(name.is_measure for name, _ in bar.pairs):
            return
        key = bar.key
        if ASIDE.search(bar.title) or self._is_beside_training(bar):
            self._is_evaluating = True
            if bar.position == bar.length:
                self._emit(bar.pairs, NOWHERE, bar.postfix, is_aside=True)
            return
        if key not in self._passes and len(self._passes) >= _MAX_COUNTERS:
            return
        if not bar.title.strip() and bar.epoch is None:
            self._has_two_lengths = self._has_two_lengths or (self._unnamed or key) != key
            self._unnamed = key
        if not self._is_evaluating and key not in self._passes:
            self._training_bars.add(bar.name)
        shown = self._passes.setdefault(key, BarPasses()).take(bar)
        if shown:
            self._take_shown(shown)

    def _is_beside_training(self, bar: Bar) -> bool:
        """Whether a bar below the heading of an evaluation differs from the training's only in its length."""
        return (
            self._is_evaluating
            and bar.epoch is None
            and bar.key not in self._passes
            and bar.name in self._training_bars
        )

    def _take_shown(self, shown: List[Shown]) -> None:
        """Take numbers beside bars.

        If unnamed bars have two lengths, one may belong to an evaluation, so neither gives steps.
        """
        for bar, pairs, position in shown:
            epoch = None if bar.epoch is None else float(bar.epoch)
            is_unclear = self._has_two_lengths and bar.key == self._unnamed
            step = None if bar.is_of_others or is_unclear else position
            if bar.own_step is not None:
                step = self._step(LinePosition(bar.own_step, epoch), is_aside=False)
            self._record(named(pairs, epoch, is_aside=False), step, bar.key, bar.postfix)

    def _take_keras(self, bar: Bar) -> None:
        """Take a Keras bar. Without an `Epoch 1/5` before it, it belongs to an evaluation or a prediction.

        Its position is no step if its length is the number of samples of `Train on 60000 samples`.
        """
        if self._keras_epoch is None:
            return
        position = None if bar.length == self._keras_samples else bar.position
        count = Count("keras", position, bar.length, self._keras_epoch, is_within=True)
        self._emit(bar.pairs, LinePosition(count, float(self._keras_epoch)), bar.postfix, is_aside=False)
        if any(name.is_evaluation for name, _ in bar.pairs):
            self._keras_epoch = None

    # the Trainer of transformers

    def _settle(self, bar: Optional[Bar], *, is_nested: bool = False) -> None:
        """Take the step of the Trainer's dict from the bar that was drawn after it.

        Without a bar (`bar` is None), another line came first and the step is None.
        """
        pending = self._pending
        if pending is None:
            return
        step = None
        if bar is not None:
            if bar.title or bar.length is None:
                return
            self._compare(bar, is_nested=is_nested, is_evaluation=pending.is_evaluation)
            if is_nested or bar.length != self._trainer_length:
                return
            step = self._trainer_step = bar.position
        self._pending = None
        self._record(pending.values, step, "trainer", pending.line, is_aside=pending.is_evaluation)

    def _compare(self, bar: Bar, *, is_nested: bool, is_evaluation: bool) -> None:
        """Decide which length the Trainer's bar has.

        An outer bar of a script, which does not advance, is not the Trainer's.
        """
        if is_nested:  # an evaluation's bar, or the Trainer's bar below an outer one
            is_outer = bar.position > 0 and not is_evaluation
        elif self._trainer_length is None:
            is_outer = bar.position == 0 and not is_evaluation
            self._trainer_length = bar.length if bar.position else None
        else:  # an outer bar, or the bar of a second training
            is_outer = bar.length == self._trainer_length and bar.position < self._trainer_step
        if is_outer:
            self._trainer_length = _NO_LENGTH

    # lines

    def _take_line(self, segment: bytes) -> None:
        text = text_of(segment)
        form = self._lines.form(text)
        if form.text is not None:
            self._take_text(text, form.text)
        elif form.keras_epoch is not None:
            self._keras_epoch = int(text[form.keras_epoch])
            self._is_evaluating = False
        elif form.keras_samples is not None:
            self._keras_samples = int(text[form.keras_samples])
        elif form.keras is not None:
            self._take_keras(form.keras.of(text))
        elif form.bar is not None:
            self._take_numbers(form.bar.of(text))

    def _take_text(self, text: str, form: TextForm) -> None:
        line = text[form.begin :]
        is_other = False
        if form.rank is not None:
            is_other = self._is_of_other(text[form.rank])
            if not is_other:
                self._has_ranks = self._has_ranks or self._has_other
            elif self._has_ranks or not form.is_label:
                return
            else:
                self._has_other = True
        if form.printed is not None:
            self._take_dict(line, form.printed)
            return
        if self._table.is_open:
            row = self._table.row(line)
            if row is not None:
                self._emit(row.pairs, row.place, text, is_aside=row.is_evaluation)
                return
        self._take_pairs(line, form, is_other=is_other)

    def _is_of_other(self, rank: str) -> bool:
        """Whether a line's rank differs from the first rank that printed."""
        self._rank = self._rank or rank
        return rank != self._rank

    def _take_dict(self, line: str, form: DictForm) -> None:
        """Take a printed dict or a JSON object."""
        pairs = {name: line[where] for name, where in form.entries}
        values = dict_values(pairs)
        if not values or form.unset > len(values):  # it holds a program's settings
            return
        rank = next((pairs[key] for key in _RANKS if key in pairs), None)
        if rank is not None and self._is_of_other(rank):
            return
        values = {key: value for key, value in values.items() if key not in _RANKS}
        head = line[: line.index("{")]
        where = place_of_dict(pairs)
        if where.counted is not None:
            values.pop(where.counted.name, None)
        if where.counted is None and head.strip():
            where = place_form(head).of(head)
        is_aside = form.is_evaluation or bool(ASIDE.search(head))
        is_aside = is_aside or all(key == "epoch" or is_evaluation(key) for key in values)
        if where.counted is None and self._is_cleared and "epoch" in values:
            self._pending = _Pending(values, line, is_aside)
            return
        if where.epoch is not None:
            values = {"epoch": where.epoch, **values}
        step = self._step(where, is_aside=is_aside, is_doubtful=form.is_evaluation)
        if is_aside:
            values = {aside_name(key): value for key, value in values.items()}
        self._record(values, step, where.counted.name if where.counted else None, line, is_aside=is_aside)

    def _take_pairs(self, line: str, form: TextForm, *, is_other: bool) -> None:
        """Take a line of free text. Indented lines below a heading such as `[epoch=1][batch=5/10]:` have its position.

        If `is_other`, the number in front may be another rank, or an epoch (`[1] step 10`), so the line gets
        no step.
        """
        where = form.where.of(line)
        if form.opens:
            self._head = where
        elif not form.is_indented or (form.pairs is None and form.trains is not None):
            self._head = None
        elif self._head is not None and where == NOWHERE:
            where = self._head
        pairs, aside = form.pairs, form.aside
        if form.trains is not None:
            self._is_evaluating = not form.trains
        has_step = where.counted is not None or where.epoch is not None
        if pairs is None or (pairs.is_weak and not has_step):
            self._is_of_validation = self._is_of_validation or bool(_OF_VALIDATION.fullmatch(line))
            self._table.takes_head(line)
            return
        if pairs.is_prose_with_step if has_step else pairs.is_prose:
            return
        found = pairs.of(line)
        if is_other:
            where = LinePosition(None, where.epoch)
        if aside is None and where == NOWHERE and self._is_evaluating:
            self._emit(found, where, line, is_aside=True)
            return
        if aside is None:
            self._is_evaluating = self._is_evaluating and where == NOWHERE
            self._emit(found, where, line, is_aside=self._is_of_validation)
            return
        self._is_evaluating = True
        if aside.part and line[aside.part[0]] != line[aside.part[1]]:
            return  # only the evaluation's progress
        if where.counted is not None and (where.counted.is_within or where.counted.length is not None):
            if where.counted.position != where.counted.length:
                return
            where = LinePosition(None, where.epoch)
        self._emit(found, where, line, is_aside=True, is_doubtful=aside.is_doubtful)

    # results

    def _emit(
        self,
        pairs: List[Tuple[Name, float]],
        where: LinePosition,
        line: str,
        *,
        is_aside: bool,
        is_doubtful: bool = False,
    ) -> None:
        step = self._step(where, is_aside=is_aside, is_doubtful=is_doubtful)
        values = named(pairs, where.epoch, is_aside=is_aside)
        self._record(values, step, where.counted.name if where.counted else None, line, is_aside=is_aside)

    def _step(self, where: LinePosition, *, is_aside: bool, is_doubtful: bool = False) -> Optional[int]:
        """Return the step of a position.

        `iter 20` gives no step if other lines have `iter 20 step 10`: the axis then comes from `step`.
        """
        count = where.counted
        if count is None or (count.name not in self._axes and len(self._axes) >= _MAX_COUNTERS):
            return None
        if count.beside and len(self._outranked) < _MAX_COUNTERS:
            self._outranked.update(count.beside)
        if count.name in self._outranked:
            return None
        axis = self._axes.setdefault(count.name, StepCounter())
        return axis.step_aside(count, is_doubtful=is_doubtful) if is_aside else axis.step(count)

    def _record(
        self,
        values: Dict[str, float],
        step: Optional[int],
        counter: Optional[str],
        line: str,
        *,
        is_aside: bool = False,
    ) -> None:
        """Record a metric. A name keeps its first counter: two counters never share a curve."""
        loss = None if is_aside or "train_runtime" in values else loss_of(values)
        main = loss or next(iter(values), "")
        if step is not None and counter is not None and len(self._counters) < _MAX_NAMES:
            step = step if self._counters.setdefault(main, counter) == counter else None
        if loss is not None:
            place = counter or ("epoch" if "epoch" in values else None)
            self._watch.take(loss, values[loss], step, line, place)
        elif step is not None and not is_aside:
            self._watch.take_perplexity(values, step, line)
        if loss is not None and counter is None and loss in self._counters:
            # A mean over an epoch, or a second print of the same loss: it is not on the curve of the steps.
            values = {key: value for key, value in values.items() if key != loss}
            if not any(is_measure(key) or is_evaluation(key) for key in values):
                return
            loss = None
        self._metrics.append(LoggedMetric(step, self._renamed(values, loss, step)))

    def _renamed(
        self, values: Dict[str, float], loss: Optional[str], step: Optional[int]
    ) -> Dict[str, float]:
        """Rename the training loss to `loss`, until a line has a number with that very name.

        A `train_loss` beside an evaluation's values at step 0 is an evaluation of the training data.
        """
        self._has_loss = self._has_loss or (loss == "loss")
        if loss is None or self._has_loss or loss.startswith("actor/"):
            return values
        if step == 0 and "/" not in loss and any(map(is_evaluation, values)):
            return values
        return {"loss" if key == loss else key: value for key, value in values.items()}


def _has_bar(low: bytes) -> bool:
    return any(mark in low for mark in _BARS)


def _nothing(_: bytes) -> None:
    """Find nothing: the search for a piece without words of metric lines."""


_BLANK = re.compile(rb"[ \t\x08]*(?:\x1b\[[0-9;]{0,20}[A-Za-z][ \t\x08]*)*\Z")


def _is_blank(segment: bytes) -> bool:
    return segment[:1] in (b"\x1b", b" ", b"\x08") and bool(_BLANK.match(segment))
