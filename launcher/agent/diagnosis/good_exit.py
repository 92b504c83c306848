"""Judge a command with exit status 0 from its log: whether it failed nevertheless, or leaves a doubt.

Many scripts catch an error, print it, and end as if it had not happened. Only an error of precision near the
end of the log is certain enough to count as a failure. Any other error is a doubt, which is shown with the
run's success.
"""

from __future__ import annotations

import math
import re
import signal
from typing import Collection, Dict, Iterable, List, NamedTuple, Optional

from ..logs.log_file import AnyLog, LogFile, as_file
from ..logs.log_names import is_evaluation
from ..logs.log_scanner import LoggedMetric, LogScanner
from ..logs.loss_watch import Divergence, LastLoss
from .diagnose import (
    END_UNKNOWN,
    PROVABLE,
    Diagnosis,
    LogLines,
    ProcessEnd,
    diagnose_lines,
    prove,
    read_lines,
)
from .failures import BY_NAME
from .specific_causes import words_of_end

END_LINES = 12
"""The most text lines, e.g. a summary, that may follow an error that ended the work. If more follow, work continued."""
_CLEAN_UP_LINES = 16
"""As END_LINES, for an error of precision: a training never overcomes it without a change."""
_UNKNOWN_LINES = 3
"""As END_LINES, for a line that only says that something failed."""
_MAX_ERRORS = 8
_MAX_BYTES = 1 << 18
_BEFORE_PROOF = 1 << 20
_PROOF_MOST = 1 << 24
"""The most bytes to search for an exception's chain and warnings: before the exception, and in total."""
_NO_DOUBT = ("preempted", "ssh-connection-lost")
"""Classes that prove nothing about a command that ended on its own with exit status 0."""
_ASKED_TO_END = re.compile(
    r"\b(?:received|caught|got)\b.*\bSIG(?:TERM|HUP)\b|\bSIG(?:TERM|HUP) received\b", re.IGNORECASE
)
"""A handler's line about a request to end, as Lightning prints it. After it the step that had begun may be logged."""
_OF_STACK = re.compile(rb"\s|Traceback \(most recent call last\)|frame #\d|\#\d+ ")
_SUCCESS = re.compile(rb"(?<!un)success", re.IGNORECASE)
_EXCEPTION = re.compile(r"\W*(?:[\w.]+\.)?\w+(?:Error|Exception): ")
_FAILED = re.compile(
    r"\b(?:fail(?:ed|ure|s)?|errors?|exception|abort(?:ed|ing)?|crash(?:ed)?|fatal|cannot|could not)\b|[❌✗✘]",
    re.IGNORECASE,
)
_WENT_ON = re.compile(
    r"(?:^|[,;:.(-]\s?)(?:now )?using\b|\b(?:instead|fall(?:s|ing|en)?[ -]?back|fell back|skip(?:s|ped|ping)?|switch(?:es|ed|ing) to"
    r"|disabl(?:ed|ing)|default(?:s|ed|ing) to|continuing|ignor(?:ed|ing)|ok|as expected)\b"
    r"|\bexpected (?:\w+ )?(?:error|failure|exception)\b|\(expected\)|✓|✔|✅",
    re.IGNORECASE,
)
_IN_ANOTHER = re.compile(
    rb"\b(?:using|fall(?:s|ing)?[ -]?back|fell back|switch(?:es|ed|ing)|retry(?:ing)?|retried|trying)\b.{0,40}"
    rb"\b(?:[bt]?f(?:p|loat)?(?:16|32)|full precision|cpu)\b",
    re.IGNORECASE,
)
"""Matches a message printed after a precision error by a script that continues in another precision."""
_MEASURED = re.compile(r"\W*errors?\b[\w ()%]{0,20}[:=]?\s*[-+]?[\d.][\d.eE+%-]*\W*", re.IGNORECASE)
_NO_PLACE = "the last loss that the log shows is not finite, but the log does not place it in a training"
_ZERO_LOSS = "every loss in the log is exactly zero: usually all labels are masked, because no row has the mark of the response"
_ZERO_RATE = "every learning rate in the log is exactly zero, so no weight has moved: check the optimizer's rate and its schedule"
_UNLABELLED = re.compile(rb"\btrain: Scanning[^\r\n]*\b0 images, [1-9]\d* backgrounds[^\r\n]*")
"""The scan of a detector's dataset (ultralytics) that found no label."""
_NO_LABELS = "the dataset has images, and not one label: the labels are not where the loader looks for them"
_MIN_ZEROS = 6
"""Fewer zeros, of losses and gradient norms, say nothing."""
_NO_INPUT_GRADIENT = re.compile(rb"None of the inputs have requires_grad=True\. Gradients will be None")
_UNTRAINED = "layers under gradient checkpointing got no gradient. Call model.enable_input_require_grads(), or set gradient_checkpointing_kwargs={'use_reentrant': False}"
_FLAT = "the loss is %.4g from the first step to the last: nothing was learnt. exp(%.4g) is %s, so for a model with a vocabulary of that size each answer is a guess"
_MIN_FLAT, _FLAT_WITHIN, _MIN_FLAT_LOSS = 30, 0.005, 1.0
"""A loss is flat if this many values lie within this share of the largest. A small loss may be flat because all is learnt."""
_IF_GOOD = "; with exit status 0, the lines after it would count as continued work"
_LAST_ERROR = "the log ends with this error, although the exit status is 0"
_CUT_SHORT = "something other than launcher asked the script to end; it left with exit status 0, perhaps before its work was done"


class Doubt(NamedTuple):
    """Why a run with exit status 0 may not have done its work: a class, a line that shows it, a reason, and advice.

    Without advice of its own, that of the class counts.
    """

    name: str
    line: Optional[str]
    why: str
    mend: Optional[str] = None

    def record(self) -> Dict[str, Optional[str]]:
        """Return the doubt as a run's evidence holds it."""
        record = {"class": self.name, "line": self.line, "why": self.why}
        return {**record, "mend": self.mend} if self.mend is not None else record


NO_STEP = Doubt(
    "no-step",
    None,
    "a training began, and made no step",
    "check that the data has rows, and that the script calls optimizer.step()",
)
NO_STATUS = Doubt(
    "no-status", None, "its script had ended, but its process had to be killed: its exit status is not known"
)


class LogReading(NamedTuple):
    """The reading of a log: a failure, a doubt, or neither; `number` is the number of the line."""

    failure: Optional[Diagnosis] = None
    doubt: Optional[Doubt] = None
    number: Optional[int] = None


def read_good_exit(log: AnyLog) -> LogReading:
    """Read the end of the log of a command that ended with exit status 0."""
    file = as_file(log)
    end = _end_of(file)
    return _read_end(file, end, read_lines(end))


def _read_end(file: LogFile, end: LogFile, lines: LogLines) -> LogReading:
    """Read the end of a log, given its lines."""
    reading = LogReading()
    for _ in range(_MAX_ERRORS):
        found = diagnose_lines(lines, ProcessEnd(exit=0))
        if found.number is None:
            break
        end = end.after(found.number)
        judged = _judge(found._replace(number=end.before), end)
        if judged.failure is not None:
            return judged
        reading = reading if reading.doubt is not None else judged
        lines = read_lines(end)
    return reading if reading.doubt is not None else _lost(file)


def _end_of(file: LogFile) -> LogFile:
    """Return the last lines of the log. Only an error in them may have ended the work: after earlier errors work continued."""
    left, start = _CLEAN_UP_LINES + 1, file.size
    for start, line in file.lines_backwards():  # noqa: B007 - the last one is where it begins
        left -= _is_text(line)
        if left < 0:
            break
    return file.at(start)


def _is_text(line: bytes) -> bool:
    """Whether a line is more than a part of a stack."""
    return bool(line.strip()) and not _OF_STACK.match(line)


def _judge(found: Diagnosis, after: LogFile) -> LogReading:
    """Judge one error of a log by its line and the output after it."""
    text = found.line or ""
    is_exception = bool(_EXCEPTION.match(text))
    is_cut_short = found.name == "preempted" and bool(_ASKED_TO_END.search(text))
    is_no_doubt = found.name in _NO_DOUBT and not is_cut_short
    if is_no_doubt or _is_judged_by_value(found) or _is_fallback(found):
        return LogReading()
    following = list(filter(_is_text, after.lines()))
    metrics = _metrics_of(after.end(_MAX_BYTES))
    if found.name in PROVABLE:
        is_resumed = metrics.is_of_training or any(map(_IN_ANOTHER.search, following))
        if is_resumed or len(following) > _CLEAN_UP_LINES:
            return LogReading()
        if is_exception or _FAILED.search(text):
            return LogReading(failure=found, number=found.number)
    most = _UNKNOWN_LINES if found.name == "unknown" else END_LINES
    has_result = metrics.is_any and not (is_cut_short and metrics.is_of_training)
    if len(following) > most or has_result or any(map(_SUCCESS.search, following)):
        return LogReading()
    why = _CUT_SHORT if is_cut_short else _LAST_ERROR
    return LogReading(doubt=Doubt(found.name, found.line, why), number=found.number)


def _is_judged_by_value(found: Diagnosis) -> bool:
    """Whether the line that shows a divergence has metrics. If so, the last loss decides instead of the line."""
    line = (found.line or "").encode("utf-8", "replace")
    return found.name == "nan-divergence" and _metrics_of(line).is_lost


def _lost(log: LogFile) -> LogReading:
    """Return a doubt if the last training loss is not finite, or if the losses were all exactly zero or never changed.

    A certain divergence is found elsewhere, from the whole log.
    """
    last, _, why = _losses(log)
    if last is not None and why is not None:
        return LogReading(doubt=Doubt("not-learning", last.line, why), number=_number_of(log, last.line))
    if untrained := _NO_INPUT_GRADIENT.search(log.end(_MAX_BYTES)):
        line = untrained[0].decode()
        return LogReading(doubt=Doubt("not-learning", line, _UNTRAINED), number=_number_of(log, line))
    if unlabelled := _UNLABELLED.search(log.end(_MAX_BYTES)):
        line = unlabelled[0].decode("utf-8", "replace").strip()
        return LogReading(doubt=Doubt("not-learning", line, _NO_LABELS), number=_number_of(log, line))
    if last is None or last.is_finite or last.is_certain:
        return LogReading()
    doubt = Doubt("nan-divergence", last.line, _NO_PLACE)
    return LogReading(doubt=doubt, number=_number_of(log, last.line))


class _Losses(NamedTuple):
    """The last training loss of a log, its divergence, and why its losses show that nothing was learnt; None if they do not."""

    last: Optional[LastLoss]
    divergence: Optional[Divergence]
    why_unlearnt: Optional[str]


def _losses(log: LogFile) -> _Losses:
    """Read the training losses at the end of a log."""
    scanner = LogScanner()
    found = scanner.feed(log.end(_MAX_BYTES)) + scanner.finish()
    losses = _values(found, ("loss", "train_loss"))
    rates = _values(found, ("learning_rate", "lr"))
    if _are_zero([*losses, *_values(found, ("grad_norm",))]):
        return _Losses(scanner.last_loss, scanner.divergence, _ZERO_LOSS)
    if _are_zero(rates):
        return _Losses(scanner.last_loss, scanner.divergence, _ZERO_RATE)
    if len(losses) >= _MIN_FLAT and _MIN_FLAT_LOSS < max(losses) < min(losses) * (1 + _FLAT_WITHIN):
        size = "%.0f" % math.exp(losses[-1]) if losses[-1] < math.log(1e6) else "beyond any"
        return _Losses(scanner.last_loss, scanner.divergence, _FLAT % (losses[-1], losses[-1], size))
    return _Losses(scanner.last_loss, scanner.divergence, None)


def _are_zero(values: List[float]) -> bool:
    return len(values) >= _MIN_ZEROS and not any(values)


def _values(found: Iterable[LoggedMetric], names: Collection[str]) -> List[float]:
    return [value for one in found for name, value in one.values.items() if name in names]


def _number_of(log: LogFile, line: str) -> Optional[int]:
    """Return the number of the last line in the end of the log that contains the given line."""
    end = log.end(_MAX_BYTES)
    at = end.rfind(line.encode("utf-8", "replace"))
    return log.newlines(log.size) - end.count(b"\n", at) + 1 if at >= 0 else None


def diagnose_log(log: AnyLog) -> Diagnosis:
    """Diagnose the log of a command whose end is unknown.

    The diagnosis contradicts neither a good end nor a bad one.
    """
    file = as_file(log)
    lines, end = read_lines(file), _end_of(file)
    reading = _read_end(file, end, lines if end.start == file.start else read_lines(end))
    if reading.failure is not None:
        return reading.failure
    found = diagnose_lines(lines, END_UNKNOWN)
    if found.line == "KeyboardInterrupt" and not any(map(_is_text, file.after(found.number or 0).lines())):
        why, mend = words_of_end(None, signal.SIGINT)  # Python then ends by the signal
        return Diagnosis("killed-by-signal", found.line, found.number, why, mend)
    if reading.doubt is not None:
        return found if found.number is not None else _as_diagnosis(reading.doubt, reading.number)
    lost, divergence, _ = _losses(file)
    if lost is not None and not lost.is_finite:
        row = BY_NAME["nan-divergence"]
        by_value = Diagnosis(row.name, lost.line, _number_of(file, lost.line), row.why, row.mend)
        found = found if found.name == row.name else by_value
        if divergence is not None and _is_judged_by_value(found):
            return found._replace(why=divergence.why)
        return found
    if found.name == "unknown" or (found.number is not None and _is_overcome(found, file, found.number)):
        none = BY_NAME["none"]
        return Diagnosis(none.name, None, None, none.why, none.mend)
    is_final = found.number is None or found.name in _NO_DOUBT
    return found if is_final else found._replace(why=found.why + _IF_GOOD)


def _as_diagnosis(doubt: Doubt, number: Optional[int]) -> Diagnosis:
    row = BY_NAME[doubt.name]
    why = doubt.why if doubt.name == "not-learning" else row.why
    return Diagnosis(row.name, doubt.line, number, why, row.mend)


def _is_overcome(found: Diagnosis, log: LogFile, number: int) -> bool:
    """Whether work continued after a line, or the line shows no failure.

    A precision error must have ended the script.
    """
    if _is_fallback(found) or _is_judged_by_value(found):
        return True
    after = log.after(number)
    if found.name in PROVABLE and (
        prove(log.end(min(len(after) + _BEFORE_PROOF, _PROOF_MOST))) is None
        or any(map(_IN_ANOTHER.search, after.lines()))
    ):
        return True
    return _metrics_of(after.end(_MAX_BYTES)).is_any


def _is_fallback(found: Diagnosis) -> bool:
    """Whether a line names a fallback and does not begin with an exception, or is a measured error: `Error: 0.03`."""
    text = found.line or ""
    if found.name == "unknown" and _MEASURED.fullmatch(text):
        return True
    return found.name != "nan-divergence" and bool(_WENT_ON.search(text)) and not _EXCEPTION.match(text)


class _Metrics(NamedTuple):
    """Whether lines have metrics, whether some are of a training, and whether some are not finite."""

    is_any: bool
    is_of_training: bool
    is_lost: bool


def _metrics_of(log: bytes) -> _Metrics:
    """Return the kinds of metrics in the end of the log."""
    scanner = LogScanner()
    found = scanner.feed((log + b"\n")[-_MAX_BYTES:]) + scanner.finish()
    is_stepped = any(one.step is not None and not all(map(is_evaluation, one.values)) for one in found)
    is_lost = not all(math.isfinite(value) for one in found for value in one.values.values())
    return _Metrics(bool(found), is_stepped or scanner.last_loss is not None, is_lost)
