"""Diagnose a log: the class of the failure, the line that proves it, why it happens and how to fix it.

Two readers share one table (failures.py). `diagnose` takes any log and always returns a diagnosis, possibly
`none` or `unknown`. `prove` accepts only the exception that ended the script; the agent acts on it without
further evidence.

The first cause counts, not its consequences. A cause counts more than signs of how the end looked from
outside, and these count more than other ranks' messages about a rank that died. Of several causes the
earliest wins. An error after which training continued is not a cause. A warning can only explain a
failure that comes after it.
"""

from __future__ import annotations

import bisect
import itertools
import re
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..logs.log_file import AnyLog, LogFile, as_file
from ..logs.log_scanner import LogScanner
from ..logs.loss_watch import is_of_sweep
from .cures import class_of
from .failures import BY_NAME, FAILURES, HARMLESS, WARNING, FailureClass, Signs, patterns
from .specific_causes import LAST_LINE, OF_LIBRARIES, words_of_end, words_of_line

MAX_CHARS = 500
PROVABLE = ("fp16-unscale", "bf16-unsupported", "bf16-dtype-mismatch")
"""The classes that an exception proves without other evidence."""

_NOTHING = ("none", "unknown")
_RECONSIDERED = ("user-code-error", "download-failed", "hub-access", "unknown")
"""The classes that an exception has by its form alone, or that an upload shares with a download."""
_NEAR = 4
"""The lines of a message, from the one that proves a failure on."""
_READ_WHOLE = 1 << 20
_READ_MOST = 1 << 20
_REPETITIVE_MOST = 3 << 20
"""If a long log is larger than this even without its repeated lines, only its beginning and its end are read."""
_SAME_LINES = 4
_MAX_HITS = 40
_MAX_LINE_LENGTH, _END_OF_LINE = 1500, 500
_MAX_PREFIXES = 8
_MIN_WIDTH = 70
_BEFORE, _AFTER = 500, 500


class Diagnosis(NamedTuple):
    """A class, the line that proves it, the line's number, the cause, and the advice.

    Line and number are None if no line of the log proves the class.
    """

    name: str
    line: Optional[str]
    number: Optional[int]
    why: str
    mend: str


class ProcessEnd(NamedTuple):
    """How the process ended, without its log; `oom_kills` is from the kernel or the container engine."""

    exit: Optional[int] = None
    signal: Optional[int] = None
    oom_kills: bool = False


END_UNKNOWN = ProcessEnd()


class LogLines(NamedTuple):
    """The lines of a log, and the line number of each in the file."""

    lines: List[str]
    numbers: List[int]


class _Hit(NamedTuple):
    """A sign in the log: the index of its line among the lines read, and its class.

    `is_beside_end`: the exit status or the signal is the cause, and the line only says that something failed.
    """

    place: int
    failure: FailureClass
    is_beside_end: bool = False


# from bytes to lines

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1a\x1c-\x1f]"
)
# Prefixes that launchers, engines, schedulers and people write before a line.
_PREFIX = re.compile(
    r"(?:"
    r"\[(?:default|rank|Rank )?\d+\]:?[ \t]?(?!\])"  # torchrun, pdsh
    r"|\[\d+,\d+\]<std(?:err|out)>:[ ]?"  # mpirun
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?:[ \t]|$)"  # a clock
    r"|(?:rank)?\d{1,4}: ?(?=\S|  )"  # srun --label
    r"|\((?:[\w.:]+ )?(?:[\w.=-]+, )*(?:\w+ )?pid=\d+[^)\n]*\) ?"  # ray, vllm
    r"|[\w.-]{1,60} +\| ?"  # docker compose
    r"|\#\d+ \d+\.\d+ ?|[ \t]*\#(?: |$)|> (?=\S)|\$ (?=Traceback)"  # buildkit, a comment, a quote
    r"|\[?\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ \t]?"  # a time
    r"|(?:\w{3} +\d+|\d{4}-\S+) \d\d:\d\d:\d\d \S+ (?:kernel|[\w./-]+\[\d+\]): ?"  # syslog
    r"|\[ *\d+\.\d{3,}\] ?"  # the kernel's ring
    r"|(?:ERROR|E) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\] ?"  # vllm
    r"|E\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./]+:\d+\] (?:\[[\w.-]+\] )?(?=  |Traceback|\w+(?:Error|Exception):)"  # glog
    r"|\d+\.\d+s\t\d+\t"  # Kaggle's
    r"|[\w-]+ (?:UNKNOWN STEP|[\w -]+)\t\d{4}-\d\d-\d\dT\S+Z ?"  # GitHub's
    r")+"
)


def read_lines(log: AnyLog) -> LogLines:
    """Return the lines of a log.

    Of a long log, repeated lines are kept only at their first and last occurrences.
    """
    file = as_file(log)
    if len(file) > _READ_WHOLE:
        return _read_long(file)
    return _cut_lines(_split(file.read(), 1))


class _Raw(NamedTuple):
    """Lines as bytes, and the line number of each in the file."""

    lines: List[bytes]
    numbers: Sequence[int]


def _split(data: bytes, first: int) -> _Raw:
    """Return the lines of a part of a log; `first` is the number of its first line.

    A progress bar writes many lines into one line of the file.
    """
    if b"\r" not in data:
        lines = data.split(b"\n")
        return _Raw(lines, range(first, first + len(lines)))
    bars = (
        itertools.repeat(number, line.count(b"\r") + 1)
        for number, line in enumerate(data.split(b"\n"), first)
    )
    return _Raw(data.replace(b"\r", b"\n").split(b"\n"), list(itertools.chain.from_iterable(bars)))


def _cut_lines(raw: _Raw) -> LogLines:
    return LogLines([_cut(line.decode("utf-8", "replace")) for line in raw.lines], list(raw.numbers))


def _read_long(file: LogFile) -> LogLines:
    """Return the lines to read of a long log, in pieces: several copies of the log may not fit into memory."""
    kept = _Raw([], [])
    first, read = 1, file.start
    for piece in file.pieces():
        kept = _joined(
            kept, _without_repeats(_split(piece[:-1] if piece.endswith((b"\n", b"\r")) else piece, first))
        )
        first, read = first + piece.count(b"\n"), read + len(piece)
        if _size(kept) > _REPETITIVE_MOST:
            kept = _without_repeats(kept)
        if _size(kept) > _REPETITIVE_MOST:
            kept = _joined(kept, _tail(file, read))
            break
    return _cut_lines(_at(kept, _excerpt(kept.lines)))


def _tail(file: LogFile, after: int) -> _Raw:
    """Return the last lines of a log behind an offset, without repeats, up to the size limit."""
    last = file.newlines(file.size) + 1
    kept = _Raw([], [])
    for offset, piece in file.pieces_backwards():
        data = piece[max(0, after - offset) :]
        first = last - data.count(b"\n")
        kept = _without_repeats(_joined(_without_repeats(_split(data, first)), kept))
        last = first
        if offset <= after or _size(kept) > _REPETITIVE_MOST:
            break
    return kept


def _joined(one: _Raw, other: _Raw) -> _Raw:
    return _Raw([*one.lines, *other.lines], [*one.numbers, *other.numbers])


def _size(raw: _Raw) -> int:
    return sum(map(len, raw.lines))


def _at(raw: _Raw, places: Sequence[int]) -> _Raw:
    return _Raw([raw.lines[place] for place in places], [raw.numbers[place] for place in places])


def _without_repeats(raw: _Raw) -> _Raw:
    return _at(raw, _first_and_last(raw.lines))


def _cut(line: str) -> str:
    """Return a line, or the beginning and the end of a very long one."""
    if len(line) <= _MAX_LINE_LENGTH + _END_OF_LINE:
        return line
    return "%s … %s" % (line[:_MAX_LINE_LENGTH], line[-_END_OF_LINE:])


def _rejoined(read: LogLines) -> LogLines:
    """Return the lines, and rejoin those that a terminal broke within a word at its full width."""
    width = max(map(len, read.lines))
    lines: List[str] = []
    numbers: List[int] = []
    last = ""
    for place, line in enumerate(read.lines):
        if _MIN_WIDTH <= len(last) == width and last[-1].isalpha() and line[:1].strip():
            lines[-1] += line
        else:
            lines.append(line)
            numbers.append(read.numbers[place])
        last = line
    return LogLines(lines, numbers)


def _clean(line: str) -> str:
    if "\x1b" in line or not line.isprintable():
        line = _ESCAPE.sub("", line)
    before = _PREFIX.match(line)
    return (line[before.end() :] if before else line).rstrip()


def _bare(lines: List[str]) -> List[str]:
    """Return the lines without the common prefix of a traceback: a host, a stream, a logger, a number."""
    prefixes: List[str] = []
    for place, line in enumerate(lines[:-1]):
        at = line.find(_HEAD)
        if at > 0 and len(prefixes) < _MAX_PREFIXES:
            prefix = re.sub(r"\d+", r"\\d+", re.sub(r"(?:\\ )+(?=.)", " *", re.escape(line[:at])))
            if prefix not in prefixes and re.match(prefix + _FRAME.pattern, lines[place + 1]):
                prefixes.append(prefix)
    if not prefixes:
        return lines
    any_prefix = re.compile("|".join(prefixes))
    return [_clean(any_prefix.sub("", line, count=1)) if any_prefix.match(line) else line for line in lines]


def _first_and_last(lines: List[bytes]) -> List[int]:
    """Return the indices of the first and last few of all lines that differ only in digits."""
    shapes = b"\n".join(lines).translate(None, b"0123456789").split(b"\n")
    kept = set()
    for order in (range(len(shapes)), range(len(shapes) - 1, -1, -1)):
        counts: Dict[bytes, int] = {}
        for place in order:
            count = counts.get(shapes[place], 0)
            if count < _SAME_LINES:
                counts[shapes[place]] = count + 1
                kept.add(place)
    return sorted(kept)


def _excerpt(lines: List[bytes]) -> List[int]:
    """Return the indices of the lines to read: the first and last few of lines that differ only in digits."""
    places = _first_and_last(lines)
    head = _fitting(lines, places, _READ_MOST // 3)
    tail = _fitting(lines, places[::-1], _READ_MOST - _READ_MOST // 3)
    return sorted({*head, *tail})


def _fitting(lines: List[bytes], places: Sequence[int], room: int) -> List[int]:
    """Return the first indices whose lines fit into `room` bytes; a very long line counts as its ends."""
    fitting = []
    for place in places:
        room -= min(len(lines[place]), _MAX_LINE_LENGTH + _END_OF_LINE) + 1
        if room < 0:
            break
        fitting.append(place)
    return fitting


# exceptions

_FRAME = re.compile(r'\s*File ".*", line \d+')
_HEAD = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:[A-Za-z_][\w.]*\.)?(\w*(?:Error|Exception|Exit|Interrupt))(?::|$)")
_PRINTED = re.compile(r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w+(?:Error|Exception)(?::|$)")
_WRAPPER = re.compile(
    r"\S*(?:ChildFailedError|CalledProcessError|SignalException|ProcessRaisedException|ProcessExitedException"
    r"|SpawnException|RayTaskError\S*|RayActorError|ActorDiedError|WorkerCrashedError|EngineDeadError"
    r"|SystemExit|KeyboardInterrupt|CancelledError|BrokenProcessPool)\b"
    r"|.*\b[Ss]ee (?:root cause|stack trace|error) above"
)
_CASCADE = re.compile(r"\S*DistBackendError\b|.*[Cc]onnection (?:closed|reset) by (?:remote )?peer")
# Errors that the machine, the network or the card can cause in a correct script.
_FROM_OUTSIDE = re.compile(
    r"\S*(?:Connection\w*Error|BrokenPipeError|TimeoutError|Timeout|EOFError|OSError|IOError|InterruptedError)\b"
    r"|.*\b(?:(?:CUDA|cuda) (?:driver |runtime )?error|cuDNN error|CUDNN_STATUS|CUBLAS_STATUS|cufft error|HIP error|Triton Error|NCCL|[Gg]loo|TCPStore"
    r"|INTERNAL ASSERT FAILED|cudaGetDeviceCount|DataLoader worker \(pid|Broken pipe|Resource temporarily unavailable|timed out)"
)
# Builtin exceptions that mean a mistake in the script regardless of their message.
_MISTAKE = re.compile(
    r"(?:Key|Type|Name|UnboundLocal|Attribute|Index|Assertion|Syntax|NotImplemented|ZeroDivision)Error$"
)
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
# Exceptions by which a script says what an error means (`raise ValueError("no such optimizer") from error`), unless
# the message quotes that error, or only says that something failed.
_MEANING = re.compile(r"(?:[A-Za-z_][\w.]*\.)?\w*(?:Value|Key|Type|Assertion|Config\w*)Error: (.+)")
_WRAPPING = re.compile(
    r"\b(?:fail\w*|errors?|exceptions?|cannot|can.t|could not|couldn.t|unable|while)\b", re.IGNORECASE
)


def _superseded(lines: List[str]) -> Set[int]:
    """Return the indices of the exceptions, with their tracebacks, in whose place a script raised one that says what they mean."""
    found: Set[int] = set()
    raised = [-1, *_exceptions(lines)]
    for number, place in enumerate(raised[1:-1], 1):
        before, later = raised[number - 1], raised[number + 1]
        between, meaning = lines[place:later], _MEANING.match(lines[later])
        quoted = lines[place].partition(": ")[2]
        is_wrapper = meaning is None or _WRAPPING.search(meaning[1]) or (quoted and quoted in meaning[1])
        if _CHAIN[1] in between and not is_wrapper:
            first = max((n for n in range(before + 1, place) if lines[n] == _HEAD), default=place)
            found.update(range(first, place + between.index(_CHAIN[1])))
    return found


def _exceptions(lines: List[str]) -> Iterator[int]:
    """Yield the indices of the lines that end a traceback: the first unindented line after its frames."""
    is_inside = False
    for number, line in enumerate(lines):
        if line == _HEAD or _FRAME.match(line):
            is_inside = True
        elif is_inside and line and not line[0].isspace():
            is_inside = False
            yield number


_INSTALLED = re.compile(
    r'\s*File "(?:<frozen|[^"]*[/\\](?:(?:site|dist)-packages[/\\]|lib[/\\]python3|bin[/\\][^/\\".]+"))'
)


def _is_of_libraries(lines: List[str], place: int) -> bool:
    """Whether an exception ends a traceback all of whose frames are in installed packages."""
    frames = []
    while place > 0 and lines[place] != _HEAD:
        place -= 1
        if _FRAME.match(lines[place]):
            frames.append(lines[place])
    return lines[place] == _HEAD and len(frames) > 1 and all(map(_INSTALLED.match, frames))


_CELL = re.compile(
    r"\s*(?:[A-Za-z_][\w.]*\.)?(\w+(?:Error|Exception)) {2,}Traceback \(most recent call last\)"
)
_CELL_SOURCE = re.compile(r"\s*(?:-+> *)?\d+(?:\s|$)")


def _cells(lines: List[str]) -> Iterator[Tuple[int, str, Optional[int]]]:
    """Yield (first line, exception name, last line) of each notebook traceback.

    The last line is None if it was cut off.
    """
    heads = [(place, head[1]) for place, head in enumerate(map(_CELL.match, lines)) if head]
    stops = [place for place, _ in heads[1:]] + [len(lines)]
    for number, (first, name) in enumerate(heads):
        raised = ((n, _RAISED.match(lines[n].lstrip())) for n in range(first + 1, stops[number]))
        yield first, name, next((n for n, line in raised if line and line[1] == name), None)


def _continues(lines: Iterable[str]) -> bool:
    """Whether training continued, so that the error printed before did not end it."""
    scanner = LogScanner()
    metrics = scanner.feed("\n".join([*lines, ""]).encode()) + scanner.finish()
    return any(
        metric.step is not None or "loss" in metric.values or "epoch" in metric.values for metric in metrics
    )


# signs

_SUCCESS = re.compile(
    r"\btrain_runtime\b|\*{3,} train metrics|\b[Tt]raining (?:is |has been )?(?:complet|finished|done|successful)"
    r"|\b(?:Finished|Completed) training\b"
)
_PROGRESS = re.compile(
    r"""^(?!.*train_runtime).*?(?<![a-z])loss(?!_scale)(?:_\w+)?[\]'"]*(?:\s*[:=]\s*|\s)['"]?(?:tensor\()?[-+]?\d""",
    re.IGNORECASE,
)
_NAN = re.compile(r"\bnan\b", re.IGNORECASE)
_HARMLESS = re.compile("|".join(HARMLESS))
_WARNING = re.compile(WARNING)


class _Signs:
    """The signs in a log by kind, in the order of their lines; within one line, in the order of the table."""

    def __init__(self, lines: List[str]) -> None:
        self._lines = lines
        self._body = "\n".join(line.strip() for line in lines).replace("\u2019", "'")
        self._flat = self._body.encode("ascii", "replace").decode().lower().replace("\n", " ")
        self._starts = [0]
        for line in self._body.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._passed_over = dict.fromkeys(_quoted(lines) | _later_ranks(lines), True)

    def causes(self) -> List[_Hit]:
        """Return the signs of causes, without warnings."""
        hits = self._find((failure, failure.causes) for failure in FAILURES)
        return [hit for hit in hits if not self._warns(hit.place)]

    def ends(self) -> List[_Hit]:
        """Return the signs of how the end looked from outside."""
        return self._find((failure, failure.ends) for failure in FAILURES)

    def echoes(self) -> List[_Hit]:
        """Return the signs that other ranks printed, without warnings."""
        hits = self._find((failure, failure.echoes) for failure in FAILURES)
        return [hit for hit in hits if not self._warns(hit.place)]

    def hints_at(self, name: str) -> List[_Hit]:
        """Return the warnings that would explain a class."""
        return self._find((failure, failure.hints) for failure in FAILURES if name in failure.explains)

    def _find(self, rows: Iterable[Tuple[FailureClass, Signs]]) -> List[_Hit]:
        hits = {}
        for rank, (failure, signs) in enumerate(rows):
            for phrase, pattern in patterns(signs):
                for place in self._places(phrase, pattern):
                    hits[place, rank] = _Hit(place, failure)
        return [hits[key] for key in sorted(hits)]

    def _places(self, phrase: str, pattern: str) -> Iterator[int]:
        for at in self._occurrences(phrase):
            place = bisect.bisect_right(self._starts, at) - 1
            if place not in self._passed_over:
                self._passed_over[place] = bool(_HARMLESS.search(self._lines[place]))
            if self._passed_over[place]:
                continue
            start = self._body.rfind("\n", 0, max(0, at - _BEFORE)) + 1
            around = self._body[start : at + _AFTER]
            matches = re.finditer(pattern, around, re.IGNORECASE | re.MULTILINE)
            if any(
                match.start() < at - start + len(phrase) and at - start < match.end() for match in matches
            ):
                yield place

    def _occurrences(self, phrase: str) -> List[int]:
        """Return the positions of a phrase; of very many, only the first and the last."""
        positions: List[int] = []
        at = self._flat.find(phrase)
        while at >= 0 and len(positions) < _MAX_HITS:
            positions.append(at)
            at = self._flat.find(phrase, at + 1)
        last = self._flat.rfind(phrase) if at >= 0 else -1
        while last >= at >= 0 and len(positions) < 2 * _MAX_HITS:
            positions.append(last)
            last = self._flat.rfind(phrase, 0, last)
        return positions

    def _warns(self, place: int) -> bool:
        """Whether a line is a warning, or continues one that ends in a colon."""
        line, before = self._lines[place].lstrip(), self._lines[place - 1] if place else ""
        return not (_RAISED.match(line) or "NCCL WARN" in line) and bool(
            _WARNING.search(line) or re.search(r"Warning:\s*$", before)
        )


def _quoted(lines: List[str]) -> Set[int]:
    """Return the indices of the frames of tracebacks and of the source lines that they quote.

    A notebook quotes source lines around each frame. If its message was cut off, they are the only evidence.
    """
    quoted: Set[int] = set()
    for first, _, last in _cells(lines):
        quoted.update(n for n in range(first, last or first) if _CELL_SOURCE.match(lines[n]))
    for place, line in enumerate(lines):
        is_source = place - 1 in quoted and line[:1].isspace() and not _RAISED.match(line.lstrip())
        if is_source or _FRAME.match(line):
            quoted.add(place)
    return quoted


def _later_ranks(lines: List[str]) -> Set[int]:
    """Return the indices of torchrun's list of ranks that failed later: torchrun ended those ranks itself."""
    later: Set[int] = set()
    start = None
    for place, line in enumerate(lines):
        if line.strip() == "Failures:":
            start = place
        elif start is not None and line.startswith("Root Cause"):
            later.update(range(start, place))
            start = None
    return later


# from signs to a class


def diagnose(log: AnyLog, ended: ProcessEnd = END_UNKNOWN) -> Diagnosis:
    """Diagnose a log and the known end of its process; the class is `none` if nothing failed."""
    return diagnose_lines(read_lines(log), ended)


def diagnose_lines(read: LogLines, ended: ProcessEnd) -> Diagnosis:
    """Diagnose the result of `read_lines` and the known end of the process."""
    first = _diagnose(read, ended)
    rejoined = _rejoined(read) if first.name in _NOTHING else read
    second = _diagnose(rejoined, ended) if len(rejoined.lines) < len(read.lines) else first
    return first if second.name in _NOTHING else second


def _diagnose(read: LogLines, ended: ProcessEnd) -> Diagnosis:
    """Diagnose these lines."""
    lines = _bare([_clean(line) for line in read.lines])
    hit = _decide(lines, _Signs(lines), ended)
    failure = BY_NAME["none"] if hit is None else hit.failure
    if hit is None or hit.place < 0:
        is_clear = failure.name != "unknown" or not (ended.exit or ended.signal)
        last = max((n for n, line in enumerate(lines) if line.strip()), default=None)
        if not is_clear and last is not None and (ended.exit, ended.signal) == (1, None):
            line = lines[last].strip()[:MAX_CHARS]
            return Diagnosis(failure.name, line, read.numbers[last], *LAST_LINE)
        why, mend = (failure.why, failure.mend) if is_clear else words_of_end(ended.exit, ended.signal)
        return Diagnosis(failure.name, None, None, why, mend)
    line = lines[hit.place].strip()[:MAX_CHARS]
    if hit.is_beside_end:
        why, mend = words_of_end(ended.exit, ended.signal, has_line=True)
        return Diagnosis(failure.name, line, read.numbers[hit.place], why, mend)
    near = "\n".join(lines[hit.place : hit.place + _NEAR])
    log = "\n".join(lines)
    if failure.name in _RECONSIDERED and (better := class_of(near, log)) is not None:
        failure = BY_NAME[better]
    words = words_of_line(failure.name, line, near, log)
    if words is None and failure.name == "user-code-error" and _is_of_libraries(lines, hit.place):
        words = OF_LIBRARIES
    why, mend = words or (failure.why, failure.mend)
    return Diagnosis(failure.name, line, read.numbers[hit.place], why, mend)


def _decide(lines: List[str], signs: _Signs, ended: ProcessEnd) -> Optional[_Hit]:
    """Return the sign of the first cause, with index -1 if the log holds no sign; None if nothing failed."""
    superseded = _superseded(lines)
    causes, echoes, ends = (
        [hit for hit in hits if hit.place not in superseded]
        for hits in (signs.causes(), signs.echoes(), signs.ends())
    )
    causes, echoes = ([hit for hit in hits if not _is_ignored(lines, hit.place)] for hits in (causes, echoes))
    classified = {hit.place for hit in (*ends, *echoes) if hit.failure.name != "unknown"} | superseded
    strays = [hit for hit in _unlisted_exceptions(lines) if hit.place not in classified]
    causes = _without_notices(lines, causes, strays)
    last_good = max(
        (n for n, line in enumerate(lines) if _PROGRESS.search(line) and not _NAN.search(line)), default=-1
    )
    ends = [
        hit
        for hit in ends
        if hit.failure.name != "nan-divergence"
        or (hit.place > last_good and not is_of_sweep(lines[hit.place]))
    ]
    late = _initiating(*([hit for hit in hits if hit.place > last_good] for hits in (causes, strays, ends)))
    first = late or _initiating(causes, strays, ends)
    is_cause = first in causes
    first = first or min((hit for hit in echoes if hit.failure.name != "unknown"), default=None)
    by_end = _class_of_end(ended)
    if by_end is not None and not is_cause and (first is None or ended.oom_kills):
        errors = [hit for hit in echoes if hit.place > last_good and lines[hit.place] != _HEAD]
        is_shown = by_end.failure.name == "unknown" and bool(errors) and not ended.oom_kills
        return errors[0]._replace(is_beside_end=True) if is_shown else by_end
    done = max((n for n, line in enumerate(lines) if _SUCCESS.search(line)), default=-1)
    # With exit status 0 a closing message proves nothing: a script that caught its error prints it too.
    is_over = ended.exit != 0 and done > max(
        (hit.place for hit in (*causes, *strays, *ends, *echoes)), default=-1
    )
    if first is not None:
        is_handled = is_over and first.failure.name != "nan-divergence" and by_end is None
        return None if is_handled else _explained(first, signs)
    if echoes and not is_over:
        return next((hit for hit in echoes if lines[hit.place] != _HEAD), echoes[0])
    return by_end if any(lines) else _Hit(-1, BY_NAME["unknown"])


_NOTICE = re.compile(r"(?!\s*\w*Error:).*\bNo module named\b")
_OF_NO_MODULE = re.compile(r"NameError\b|.*'NoneType'")


def _without_notices(lines: List[str], causes: List[_Hit], strays: List[_Hit]) -> List[_Hit]:
    """Return the causes without notices of missing optional modules, if another mistake ended the script after them."""
    notices = [hit for hit in causes if _NOTICE.match(lines[hit.place])]
    ended = set(_last_chain(lines)) if notices else set()
    mistakes = [
        hit.place for hit in strays if hit.place in ended and not _OF_NO_MODULE.match(lines[hit.place])
    ]
    return [hit for hit in causes if hit not in notices or not any(place > hit.place for place in mistakes)]


def _initiating(causes: List[_Hit], strays: List[_Hit], ends: List[_Hit]) -> Optional[_Hit]:
    """Return the first hit of the kind that counts most.

    If the log has a cause, an exception without a row in the table was either caught or a consequence of that
    cause. Otherwise the first of these exceptions and of the signs of the end counts.
    """
    if not causes:
        return min((*strays, *ends), key=lambda hit: hit.place, default=None)
    outer = next((hit for hit in causes if causes[0].failure.name in hit.failure.encloses), causes[0])
    return _Hit(causes[0].place, outer.failure)


def _explained(effect: _Hit, signs: _Signs) -> _Hit:
    """Return the earlier warning that explains a hit, or the hit itself."""
    earlier = (hit for hit in signs.hints_at(effect.failure.name) if hit.place < effect.place)
    return next(earlier, effect)


def _class_of_end(ended: ProcessEnd) -> Optional[_Hit]:
    """Return the class that exit status, signal and OOM kills suggest; None for a good or unknown end."""
    if ended.oom_kills or ended.signal == 9 or ended.exit == 137:
        return _Hit(-1, BY_NAME["host-oom-killed"])
    if ended.signal in (1, 15) or ended.exit == 143:
        return _Hit(-1, BY_NAME["preempted"])
    return _Hit(-1, BY_NAME["unknown"]) if ended.exit or ended.signal else None


def _unlisted_exceptions(lines: List[str]) -> List[_Hit]:
    """Return the exceptions without a row in the table: nearly always a mistake in the script."""
    places = set(_exceptions(lines)) | {n for n, line in enumerate(lines) if _PRINTED.match(line.lstrip())}
    cut_off = [first for first, name, last in _cells(lines) if last is None and _MISTAKE.match(name)]
    hits = [_Hit(place, BY_NAME["user-code-error"]) for place in cut_off]
    for place in sorted(places):
        line = lines[place].lstrip()
        raised = _RAISED.match(line) or re.match(r"(?:[a-z_]\w*\.)+([A-Z]\w*)(?::|$)", line)
        if raised and not (_WRAPPER.match(line) or _CASCADE.match(line) or _is_ignored(lines, place)):
            is_mistake = _MISTAKE.match(raised[1]) or not _FROM_OUTSIDE.match(line)
            name = "user-code-error" if is_mistake else "unknown"
            hits.append(_Hit(place, BY_NAME[name]))
    return sorted(hits)


def _is_ignored(lines: List[str], place: int) -> bool:
    """Whether an exception is not the one that ended the script.

    Python reports one in `__del__` and continues. torch raises that of a loader's worker again, and quotes the original.
    """
    if lines[place + 1 : place + 2] == ["Original " + _HEAD]:
        return True
    place -= 1
    while place >= 0 and (lines[place][:1].isspace() or lines[place] == _HEAD):
        place -= 1
    return place >= 0 and lines[place].startswith("Exception ignored in")


# proofs for the agent


def prove(log: bytes) -> Optional[Diagnosis]:
    """Return the PROVABLE failure shown by the exception at the end of a failed attempt's log, else None.

    That exception ends the log's last traceback, not counting launchers' wrappers and errors about a dead
    rank. In a chain the first one counts: the others were raised while it was handled. A traceback that a
    script only printed does not count.
    """
    lines = [_clean(_cut(line)) for line in re.split(r"[\r\n]+", log.decode("utf-8", "replace"))]
    for place in _last_chain(lines):
        near = "\n".join(_message(lines, place))
        for name in PROVABLE:
            failure = BY_NAME[name]
            if any(re.search(pattern, near, re.IGNORECASE) for _, pattern in patterns(failure.causes)):
                hit = _Hit(place, failure)
                if _explained(hit, _Signs(lines)) != hit:
                    return None
                line = lines[place][:MAX_CHARS]
                why, mend = words_of_line(name, line, near, "") or (failure.why, failure.mend)
                return Diagnosis(name, line, None, why, mend)
    return None


def _message(lines: List[str], place: int) -> Iterator[str]:
    """Yield the lines of an exception's message, up to the next traceback or `_NEAR` lines."""
    for line in lines[place : place + _NEAR]:
        if line == _HEAD:
            return
        yield line


def _last_chain(lines: List[str]) -> List[int]:
    """Return the indices of the chained exceptions that ended the script, in order; empty if none did."""
    raised = [n for n in _exceptions(lines) if not _WRAPPER.match(lines[n]) and not _CASCADE.match(lines[n])]
    if not raised or _continues(lines[raised[-1] + 1 :]):
        return []
    first = len(raised) - 1
    while first > 0 and any(line in _CHAIN for line in lines[raised[first - 1] : raised[first]]):
        first -= 1
    return raised[first:]
