"""What a log says of a failure: its class, the line that proves it, why it happens and what mends it.

Two readers share one table (failures.py). `diagnose` takes any log and always has an answer, `none` and `unknown` among
them. `prove` is what the agent acts on: it believes only the exception that ended a script.

What initiates counts, not what follows: a cause wins over how the end looked from outside, that over what other ranks
say of a dead one, and of several the earliest. What the training went on after is no cause. A warning explains at most
a failure that comes behind it.
"""

from __future__ import annotations

import bisect
import re
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from .failures import BY_NAME, FAILURES, HARMLESS, WARNING, Failure, Signs, patterns
from .logscan import LogScanner

TAIL_BYTES = 256 * 1024
MOST_CHARS = 500
PROVABLE = ("fp16-unscale", "bf16-unsupported", "bf16-dtype-mismatch")
"""What an exception proves all by itself, and the agent answers."""

_NOTHING = ("none", "unknown")
_READ_WHOLE = 1 << 20
_READ_MOST = 1 << 20
_SAME_LINES = 4
_MOST_HITS = 40
_MOST_FRONTS = 8
_LEAST_WIDTH = 70
_BEFORE, _AFTER = 500, 500


class Diagnosis(NamedTuple):
    """A class, the line that proves it and its number (None where the log has none), why, and what a person can do."""

    name: str
    line: Optional[str]
    number: Optional[int]
    why: str
    mend: str


class Ended(NamedTuple):
    """How the process ended, as far as it is known beside the log; `oom_kills` is the kernel's or the engine's word."""

    exit: Optional[int] = None
    signal: Optional[int] = None
    oom_kills: bool = False


NOT_TOLD = Ended()


class _Log(NamedTuple):
    """The lines of a log, and the number that each has in the file."""

    lines: List[str]
    numbers: List[int]


class _Hit(NamedTuple):
    """A sign that was found: the place of its line among the lines read, and whose it is."""

    place: int
    failure: Failure


# from bytes to lines

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1a\x1c-\x1f]"
)
# What launchers, engines, schedulers and people put before a line.
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


def _read(log: bytes) -> _Log:
    """Return the lines of a log; of a long one those that are there again and again only first and last."""
    lines = log.decode("utf-8", "replace").split("\n")
    numbers = list(range(1, len(lines) + 1))
    if b"\r" in log:  # progress bars: many lines in one of the file's
        parts = [(part, number) for number, line in enumerate(lines, start=1) for part in line.split("\r")]
        lines, numbers = [part for part, _ in parts], [number for _, number in parts]
    if len(log) > _READ_WHOLE:
        kept = _excerpt(lines)
        lines, numbers = [lines[place] for place in kept], [numbers[place] for place in kept]
    return _Log(lines, numbers)


def _unbroken(read: _Log) -> _Log:
    """Return the lines with those made whole that a terminal broke, within a word: they are as wide as it."""
    width = max(map(len, read.lines))
    lines: List[str] = []
    numbers: List[int] = []
    last = ""
    for place, line in enumerate(read.lines):
        if _LEAST_WIDTH <= len(last) == width and last[-1].isalpha() and line[:1].strip():
            lines[-1] += line
        else:
            lines.append(line)
            numbers.append(read.numbers[place])
        last = line
    return _Log(lines, numbers)


def _clean(line: str) -> str:
    if "\x1b" in line or not line.isprintable():
        line = _ESCAPE.sub("", line)
    before = _PREFIX.match(line)
    return (line[before.end() :] if before else line).rstrip()


def _bare(lines: List[str]) -> List[str]:
    """Return the lines without what stands before each line of a traceback: a host, a stream, a logger, a number."""
    fronts: List[str] = []
    for place, line in enumerate(lines[:-1]):
        at = line.find(_HEAD)
        if at > 0 and len(fronts) < _MOST_FRONTS:
            here = re.sub(r"\d+", r"\\d+", re.sub(r"(?:\\ )+(?=.)", " *", re.escape(line[:at])))
            if here not in fronts and re.match(here + _FRAME.pattern, lines[place + 1]):
                fronts.append(here)
    if not fronts:
        return lines
    front = re.compile("|".join(fronts))
    return [_clean(front.sub("", line, count=1)) if front.match(line) else line for line in lines]


def _excerpt(lines: List[str]) -> List[int]:
    """Return the places of the lines to read: digits aside, a few of each kind, the first and the last of them."""
    shapes = "\n".join(lines).encode().translate(None, b"0123456789").split(b"\n")
    kept = set()
    for order in (range(len(shapes)), range(len(shapes) - 1, -1, -1)):
        counts: Dict[bytes, int] = {}
        for place in order:
            count = counts.get(shapes[place], 0)
            if count < _SAME_LINES:
                counts[shapes[place]] = count + 1
                kept.add(place)
    places = sorted(kept)
    head = _as_many(lines, places, _READ_MOST // 3)
    tail = _as_many(lines, places[::-1], _READ_MOST - _READ_MOST // 3)
    return sorted({*head, *tail})


def _as_many(lines: List[str], places: Sequence[int], room: int) -> List[int]:
    taken = []
    for place in places:
        room -= len(lines[place]) + 1
        if room < 0:
            break
        taken.append(place)
    return taken


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
# What the machine, the network or the card may do to a script that is right.
_NOT_ITS_OWN = re.compile(
    r"\S*(?:Connection\w*Error|BrokenPipeError|TimeoutError|Timeout|EOFError|OSError|IOError|InterruptedError)\b"
    r"|.*\b(?:(?:CUDA|cuda) (?:driver |runtime )?error|cuDNN error|CUDNN_STATUS|CUBLAS_STATUS|cufft error|HIP error|Triton Error|NCCL|[Gg]loo|TCPStore"
    r"|INTERNAL ASSERT FAILED|cudaGetDeviceCount|DataLoader worker \(pid|Broken pipe|Resource temporarily unavailable|timed out)"
)
# Builtins that tell a mistake by themselves, and not by their message.
_MISTAKE = re.compile(
    r"(?:Key|Type|Name|UnboundLocal|Attribute|Index|Assertion|Syntax|NotImplemented|ZeroDivision)Error$"
)
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def _exceptions(lines: List[str]) -> Iterator[int]:
    """Yield the places of the lines that end a traceback: the first behind its frames that is not indented."""
    is_inside = False
    for number, line in enumerate(lines):
        if line == _HEAD or _FRAME.match(line):
            is_inside = True
        elif is_inside and line and not line[0].isspace():
            is_inside = False
            yield number


_CELL = re.compile(
    r"\s*(?:[A-Za-z_][\w.]*\.)?(\w+(?:Error|Exception)) {2,}Traceback \(most recent call last\)"
)
_CELL_SOURCE = re.compile(r"\s*(?:-+> *)?\d+(?:\s|$)")


def _cells(lines: List[str]) -> Iterator[Tuple[int, str, Optional[int]]]:
    """Yield of each traceback in a notebook its first line, its exception's name and its last line, None where it is cut off."""
    heads = [(place, head[1]) for place, head in enumerate(map(_CELL.match, lines)) if head]
    stops = [place for place, _ in heads[1:]] + [len(lines)]
    for number, (first, name) in enumerate(heads):
        raised = ((n, _RAISED.match(lines[n].lstrip())) for n in range(first + 1, stops[number]))
        yield first, name, next((n for n, line in raised if line and line[1] == name), None)


def _goes_on(lines: Iterable[str]) -> bool:
    """Whether the training went on, so that what was printed before was no end of it."""
    return bool(LogScanner().feed("\n".join([*lines, ""]).encode()))


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
    """The signs of a log by their kind, in the order of their lines, and of one line in that of the table."""

    def __init__(self, lines: List[str]) -> None:
        self._lines = lines
        self._body = "\n".join(line.strip() for line in lines).replace("\u2019", "'")
        self._flat = self._body.encode("ascii", "replace").decode().lower().replace("\n", " ")
        self._starts = [0]
        for line in self._body.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._quoted = _quoted(lines) | _later_ranks(lines)

    def causes(self) -> List[_Hit]:
        """Return what says what went wrong, warnings aside."""
        found = self._find((one, one.causes) for one in FAILURES)
        return [hit for hit in found if not self._warns(hit.place)]

    def ends(self) -> List[_Hit]:
        """Return what says how the end looked from outside."""
        return self._find((one, one.ends) for one in FAILURES)

    def echoes(self) -> List[_Hit]:
        """Return what others see of a dead one, warnings aside."""
        found = self._find((one, one.echoes) for one in FAILURES)
        return [hit for hit in found if not self._warns(hit.place)]

    def hints_at(self, name: str) -> List[_Hit]:
        """Return the warnings that would explain a class."""
        return self._find((one, one.hints) for one in FAILURES if name in one.explains)

    def _find(self, wanted: Iterable[Tuple[Failure, Signs]]) -> List[_Hit]:
        hits = {}
        for rank, (failure, signs) in enumerate(wanted):
            for phrase, pattern in patterns(signs):
                for place in self._places(phrase, pattern):
                    hits[place, rank] = _Hit(place, failure)
        return [hits[key] for key in sorted(hits)]

    def _places(self, phrase: str, pattern: str) -> Iterator[int]:
        for at in self._occurrences(phrase):
            place = bisect.bisect_right(self._starts, at) - 1
            if place in self._quoted or _HARMLESS.search(self._lines[place]):
                continue
            start = self._body.rfind("\n", 0, max(0, at - _BEFORE)) + 1
            around = self._body[start : at + _AFTER]
            matches = re.finditer(pattern, around, re.IGNORECASE | re.MULTILINE)
            if any(
                match.start() < at - start + len(phrase) and at - start < match.end() for match in matches
            ):
                yield place

    def _occurrences(self, phrase: str) -> List[int]:
        """Return where a phrase stands; of very many the first and the last."""
        found: List[int] = []
        at = self._flat.find(phrase)
        while at >= 0 and len(found) < _MOST_HITS:
            found.append(at)
            at = self._flat.find(phrase, at + 1)
        last = self._flat.rfind(phrase) if at >= 0 else -1
        while last >= at >= 0 and len(found) < 2 * _MOST_HITS:
            found.append(last)
            last = self._flat.rfind(phrase, 0, last)
        return found

    def _warns(self, place: int) -> bool:
        """Whether a line is a warning, or goes on with one that ends in a colon."""
        line, before = self._lines[place].lstrip(), self._lines[place - 1] if place else ""
        return not (_RAISED.match(line) or "NCCL WARN" in line) and bool(
            _WARNING.search(line) or re.search(r"Warning:\s*$", before)
        )


def _quoted(lines: List[str]) -> Set[int]:
    """Return the places of the frames of tracebacks and of the source that they quote.

    A notebook quotes lines round each frame; where its message is cut off, they are all that is known.
    """
    found: Set[int] = set()
    for first, _, last in _cells(lines):
        found.update(n for n in range(first, last or first) if _CELL_SOURCE.match(lines[n]))
    for place, line in enumerate(lines):
        is_behind = place - 1 in found and line[:1].isspace() and not _RAISED.match(line.lstrip())
        if is_behind or _FRAME.match(line):
            found.add(place)
    return found


def _later_ranks(lines: List[str]) -> Set[int]:
    """Return the places of what torchrun lists of ranks that failed behind the first, which it ended itself."""
    found: Set[int] = set()
    start = None
    for place, line in enumerate(lines):
        if line.strip() == "Failures:":
            start = place
        elif start is not None and line.startswith("Root Cause"):
            found.update(range(start, place))
            start = None
    return found


# from signs to a class


def diagnose(log: bytes, ended: Ended = NOT_TOLD) -> Diagnosis:
    """Return what a log, and what is known beside it, says of a failure; `none` where nothing failed."""
    read = _read(log)
    told = _tell(read, ended)
    whole = _unbroken(read) if told.name in _NOTHING else read
    again = _tell(whole, ended) if len(whole.lines) < len(read.lines) else told
    return told if again.name in _NOTHING else again


def _tell(read: _Log, ended: Ended) -> Diagnosis:
    """Return what these lines say."""
    lines = _bare([_clean(line) for line in read.lines])
    found = _decide(lines, _Signs(lines), ended)
    if found is None or found.place < 0:
        failure = BY_NAME["none"] if found is None else found.failure
        return Diagnosis(failure.name, None, None, failure.why, failure.mend)
    line = lines[found.place].strip()[:MOST_CHARS]
    return Diagnosis(
        found.failure.name, line, read.numbers[found.place], found.failure.why, found.failure.mend
    )


def _decide(lines: List[str], signs: _Signs, ended: Ended) -> Optional[_Hit]:
    """Return the sign that initiated the failure, its place -1 where the log holds none; None where nothing failed."""
    causes, echoes = (
        [hit for hit in hits if not _is_ignored(lines, hit.place)]
        for hits in (signs.causes(), signs.echoes())
    )
    ends = signs.ends()
    known = {hit.place for hit in (*ends, *echoes) if hit.failure.name != "unknown"}
    strays = [hit for hit in _strays(lines) if hit.place not in known]
    good = max(
        (n for n, line in enumerate(lines) if _PROGRESS.search(line) and not _NAN.search(line)), default=-1
    )
    ends = [hit for hit in ends if hit.failure.name != "nan-divergence" or hit.place > good]
    late = _initiating(*([hit for hit in hits if hit.place > good] for hits in (causes, strays, ends)))
    found = late or _initiating(causes, strays, ends)
    is_cause = found in causes
    found = found or min((hit for hit in echoes if hit.failure.name != "unknown"), default=None)
    told = _told_beside(ended)
    if told is not None and not is_cause and (found is None or ended.oom_kills):
        return told
    done = max((n for n, line in enumerate(lines) if _SUCCESS.search(line)), default=-1)
    is_over = done > max((hit.place for hit in (*causes, *strays, *ends, *echoes)), default=-1)
    if found is not None:
        is_handled = is_over and found.failure.name != "nan-divergence" and told is None
        return None if is_handled else _explained(found, signs)
    if echoes and not is_over:
        return next((hit for hit in echoes if lines[hit.place] != _HEAD), echoes[0])
    return told if any(lines) else _Hit(-1, BY_NAME["unknown"])


def _initiating(causes: List[_Hit], strays: List[_Hit], ends: List[_Hit]) -> Optional[_Hit]:
    """Return what came first of the kind that counts most.

    An exception that no row knows was either caught or came of a cause; else it stands against how all ended.
    """
    if not causes:
        return min((*strays, *ends), key=lambda hit: hit.place, default=None)
    outer = next((hit for hit in causes if causes[0].failure.name in hit.failure.encloses), causes[0])
    return _Hit(causes[0].place, outer.failure)


def _explained(found: _Hit, signs: _Signs) -> _Hit:
    """Return the warning above that is the cause of what was found; that itself where there is none."""
    earlier = (hit for hit in signs.hints_at(found.failure.name) if hit.place < found.place)
    return next(earlier, found)


def _told_beside(ended: Ended) -> Optional[_Hit]:
    """Return what exit status, signal and the kernel's word say of an end; None for a good one, or where none is told."""
    if ended.oom_kills or ended.signal == 9 or ended.exit == 137:
        return _Hit(-1, BY_NAME["host-oom-killed"])
    if ended.signal in (1, 15) or ended.exit == 143:
        return _Hit(-1, BY_NAME["preempted"])
    return _Hit(-1, BY_NAME["unknown"]) if ended.exit or ended.signal else None


def _strays(lines: List[str]) -> List[_Hit]:
    """Return the exceptions that no row of the table need know: nearly always the script's own mistake."""
    places = set(_exceptions(lines)) | {n for n, line in enumerate(lines) if _PRINTED.match(line.lstrip())}
    cut_off = [first for first, name, last in _cells(lines) if last is None and _MISTAKE.match(name)]
    found = [_Hit(place, BY_NAME["user-code-error"]) for place in cut_off]
    for place in sorted(places):
        line = lines[place].lstrip()
        is_one = _RAISED.match(line) or re.match(r"(?:[a-z_]\w*\.)+([A-Z]\w*)(?::|$)", line)
        if is_one and not (_WRAPPER.match(line) or _CASCADE.match(line) or _is_ignored(lines, place)):
            is_mistake = _MISTAKE.match(is_one[1]) or not _NOT_ITS_OWN.match(line)
            name = "user-code-error" if is_mistake else "unknown"
            found.append(_Hit(place, BY_NAME[name]))
    return sorted(found)


def _is_ignored(lines: List[str], place: int) -> bool:
    """Whether an exception is one that Python only mentions, as those in `__del__`."""
    place -= 1
    while place >= 0 and (lines[place][:1].isspace() or lines[place] == _HEAD):
        place -= 1
    return place >= 0 and lines[place].startswith("Exception ignored in")


# what the agent acts on


def prove(log: bytes) -> Optional[Diagnosis]:
    """Return what the exception that ended a failed attempt's log proves; None where it is none of the PROVABLE.

    That is the end of the log's last traceback, launchers' wrappers and what other ranks say of a dead one aside; and
    the first of its chain, for the others came about while it was handled. What a script merely prints is no end.
    """
    lines = [_clean(line) for line in re.split(r"[\r\n]+", log.decode("utf-8", "replace"))]
    for place in _last_chain(lines):
        for name in PROVABLE:
            failure = BY_NAME[name]
            if any(
                re.search(pattern, lines[place], re.IGNORECASE) for _, pattern in patterns(failure.causes)
            ):
                found = _Hit(place, failure)
                if _explained(found, _Signs(lines)) != found:
                    return None
                return Diagnosis(name, lines[place][:MOST_CHARS], None, failure.why, failure.mend)
    return None


def _last_chain(lines: List[str]) -> List[int]:
    """Return the places of the exceptions that ended the script, the first of their chain first; none if none did."""
    raised = [n for n in _exceptions(lines) if not _WRAPPER.match(lines[n]) and not _CASCADE.match(lines[n])]
    if not raised or _goes_on(lines[raised[-1] + 1 :]):
        return []
    first = len(raised) - 1
    while first > 0 and any(line in _CHAIN for line in lines[raised[first - 1] : raised[first]]):
        first -= 1
    return raised[first:]
