"""Figures of a run's cards, from one `nvidia-smi` process that reports every ten seconds during a training.

nvidia-smi asks the driver and opens no CUDA context, so it holds no card. The kernel ends it with the agent,
even if the agent is killed. If it waits for a driver that does not answer, it ends later; a sweep finds it by
the run's token.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from typing import IO, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..system import process

EVERY_S = 10
MAX_STARTS = 4
PAUSE_S = 60.0  # before it is started again
ENDING_S = 1.0
SETTLED_S = 0.2  # a report is complete this long after its last row
MAX_LINE_BYTES = 4096


class CardFigure(NamedTuple):
    """A figure of a card.

    nvidia-smi's number is multiplied by `factor` and kept with `digits` decimals. A value above `most` is not
    credible.
    """

    name: str
    factor: float
    digits: int
    most: float


CARD_USE = "use_percent"
_FIGURES = {
    "utilization.gpu": CardFigure(CARD_USE, 1.0, 0, 100.0),
    "memory.used": CardFigure("memory_gb", 1.048576e-3, 2, 1e5),  # from MiB
    "power.draw": CardFigure("power_w", 1.0, 1, 1e5),
    "temperature.gpu": CardFigure("temperature_c", 1.0, 0, 300.0),
}
FIELDS = ("uuid", *_FIGURES)
_UUID = re.compile(r"(GPU|MIG)-[^ ,]{1,80}")
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


def read_row(line: str) -> Optional[Tuple[str, Dict[str, float]]]:
    """Return a card's UUID and figures from a line of nvidia-smi, or None if the line is not a card's.

    A cell without a number is left out, such as [N/A], [Unknown Error] or [GPU is lost].
    """
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(FIELDS) or not _UUID.fullmatch(cells[0]):
        return None
    figures = {}
    for figure, cell in zip(_FIGURES.values(), cells[1:]):  # noqa: B905 # Python 3.8 has no `strict`
        value = figure.factor * float(cell) if _NUMBER.fullmatch(cell) else -1.0
        if 0.0 <= value <= figure.most:
            figures[figure.name] = round(value, figure.digits) if figure.digits else int(value)
    return cells[0], figures


class CardSamples:
    """The newest figures of some cards from nvidia-smi, until a caller takes them; empty without nvidia-smi."""

    def __init__(self, uuids: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start nothing yet; `variables` are nvidia-smi's."""
        self._numbers = {uuid: number for number, uuid in enumerate(uuids)}
        self._variables = variables
        self._starts_left = MAX_STARTS if uuids and shutil.which("nvidia-smi") else 0
        self._start_s = 0.0
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._process: Optional[process.Process] = None
        self._stuck: List[int] = []
        self._rest = b""
        self._rows: Dict[int, Dict[str, float]] = {}
        self._row_s = 0.0

    @property
    def pids(self) -> List[int]:
        """The process id of nvidia-smi while it runs, and those of earlier ones that could not be ended."""
        return [*self._stuck, *([self._child.pid] if self._child is not None else [])]

    def start(self) -> Optional[IO[bytes]]:
        """Start nvidia-smi if allowed and not running. Return its output, None if it was not started."""
        if self._child is not None or not self._starts_left or time.monotonic() < self._start_s:
            return None
        self._starts_left -= 1
        try:
            self._child = subprocess.Popen(
                process.bound_to_us(_words(list(self._numbers))),
                cwd="/",
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self._starts_left = 0
            return None
        self._process = process.find(self._child.pid)
        assert self._child.stdout is not None  # noqa: S101 - asked for with PIPE
        os.set_blocking(self._child.stdout.fileno(), False)
        return self._child.stdout

    def read(self) -> bool:
        """Take in the output of nvidia-smi; return False if it has ended."""
        assert self._child is not None  # noqa: S101 - it was started
        assert self._child.stdout is not None  # noqa: S101 - asked for with PIPE
        piece = os.read(self._child.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self._rest = self._rest[-MAX_LINE_BYTES:]
        for line in lines:
            self._take_row(line.decode("ascii", "replace"))
        return bool(piece)

    def _take_row(self, line: str) -> None:
        row = read_row(line)
        number = self._numbers.get(row[0]) if row is not None else None
        if row is not None and number is not None:
            self._rows[number] = row[1]
            self._row_s = time.monotonic()

    @property
    def has_report(self) -> bool:
        """Whether a complete report waits to be taken."""
        return bool(self._rows) and time.monotonic() >= self._row_s + SETTLED_S

    def take(self) -> Dict[str, float]:
        """Return and forget the newest figures by name, e.g. gpu0.use_percent; gpu0 is the run's first."""
        rows, self._rows = self._rows, {}
        return {
            "gpu%d.%s" % (number, name): value
            for number in sorted(rows)
            for name, value in rows[number].items()
        }

    def end(self) -> None:
        """End nvidia-smi if it runs. If it waits for a driver that does not answer, it ends later."""
        if self._child is None or self._child.stdout is None:
            return
        if self._process is not None:
            process.send(self._process, signal.SIGKILL)
        self._child.stdout.close()
        try:
            self._child.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._stuck.append(self._child.pid)
        self._child, self._rest, self._rows = None, b"", {}
        self._start_s = time.monotonic() + PAUSE_S


def _words(uuids: List[str]) -> List[str]:
    """Return the command line of nvidia-smi.

    Without `stdbuf`, some versions write into a pipe only in blocks of many reports.
    """
    unbuffered = ["stdbuf", "-oL"] if shutil.which("stdbuf") else []
    question = ["--query-gpu=" + ",".join(FIELDS), "--format=csv,noheader,nounits"]
    return [*unbuffered, "nvidia-smi", *question, "--id=" + ",".join(uuids), "--loop=%d" % EVERY_S]
