"""Record the host's own figures while a training runs.

They do not affect the judgement of the training, except that a card in use is not a hang.
"""

from __future__ import annotations

import os
import time
from typing import IO, TYPE_CHECKING, List, Optional, Sequence

from ..attempt.attempt_writer import AttemptWriter
from ..attempt.streams import Streams
from ..cards.card_samples import CARD_USE, EVERY_S, CardSamples
from ..record import secret
from ..record.files import read_text
from ..record.rundir import Run
from ..system.host_samples import HostSamples

if TYPE_CHECKING:
    from ..record.run_records import PlanRecord

FIRST_S = 7.0
EARLY_S = 5.0  # a report of the cards may come this long before the figures are due
LATE_S = 5.0  # and the figures wait this long for it


class HostWatch:
    """Record one event of kind `host` about every ten seconds.

    If the run has cards, it waits for their report. It contains the size of the log too, by which a client
    finds the output printed since a given time.
    """

    def __init__(self, account: AttemptWriter, host: HostSamples, cards: CardSamples) -> None:
        """Begin; no process is started before the first turn."""
        self._account = account
        self._host = host
        self._cards = cards
        self._output: Optional[IO[bytes]] = None
        self._due_s = time.monotonic() + FIRST_S
        self._was_card_used = False

    @property
    def pids(self) -> List[int]:
        """The processes that belong to the watch and not to the training."""
        return self._cards.pids

    def take_card_use(self) -> bool:
        """Whether a card of the run was used since the last call, by the cards' reports."""
        was_used, self._was_card_used = self._was_card_used, False
        return was_used

    def turn(self, streams: Streams) -> None:
        """Record the figures if they are due.

        Called twice a second, and whenever the training prints or reports.
        """
        if self._output is None:
            self._start(streams)
        now_s = time.monotonic()
        if now_s < self._due_s - EARLY_S:
            return
        latest_s = self._due_s + (LATE_S if self._output is not None else 0.0)
        if self._cards.has_report or now_s >= latest_s:
            self._due_s = now_s + EVERY_S
            self._record()

    def _start(self, streams: Streams) -> None:
        self._output = self._cards.start()
        if self._output is not None:
            streams.listen(self._output, lambda: self._read(streams))

    def _read(self, streams: Streams) -> None:
        if not self._cards.read():
            self.end(streams)

    def _record(self) -> None:
        cards = self._cards.take()
        self._was_card_used |= any(value > 0 for name, value in cards.items() if name.endswith(CARD_USE))
        figures = {**self._host.read(), **cards}
        self._account.record("host", {**figures, "log_bytes": self._account.log_bytes})

    def end(self, streams: Streams) -> None:
        """End the process that reports the cards."""
        if self._output is not None:
            streams.forget(self._output)
            self._output = None
            self._cards.end()


def make_watch(run: Run, plan: PlanRecord, gpus: Sequence[str], account: AttemptWriter) -> HostWatch:
    """Return the watch for the figures of this host and of a run's own cards, by their UUIDs."""
    inherited = secret.without(dict(os.environ), plan)
    variables = {**inherited, "LAUNCH_TOKEN": read_text(run.token) or ""}
    return HostWatch(account, HostSamples(run.path), CardSamples(gpus, variables))
