"""The verb `read`: news of runs since a client's cursors. One request may ask about many runs.

The answer is sent as soon as one run has news, with all runs that have some. Each run that cannot be read
gets a separate refusal.
"""

from __future__ import annotations

import time
from typing import Any, List, NamedTuple, Optional, Union

from ..record import strict_json
from ..record.rundir import Run
from ..record.strict_json import JsonObject
from ..serving import cursors
from ..serving.client_connection import SILENCE_S
from ..serving.requests import Refusal, RequestError, RunId, VerbReply, parse, refusal_of
from ..serving.session import ClientSession, Verb

POLL_S = 0.05
REST = 9.0
"""The pause after a look at all runs, as a multiple of the time of the look: many runs then use a tenth of a core."""


class RunQuestion(NamedTuple):
    """A client's cursors in a run, and how long to wait for news; see cursors.py."""

    run: RunId
    wait_s: float = 0.0
    cursors: Optional[JsonObject] = None
    from_: int = 0
    state: Optional[List[Any]] = None
    plan: bool = False


class Read(NamedTuple):
    """One question per run."""

    runs: List[JsonObject]


class RunAnswer(NamedTuple):
    """The news of a run: values as JSON, then bytes; or a refusal. `number` is the question's number."""

    number: int
    values: bytes = b""
    payload: bytes = b""
    is_full: bool = False
    refusal: Optional[Refusal] = None

    @property
    def size(self) -> int:
        """The number of bytes of the values and the payload."""
        return len(self.values) + len(self.payload)

    @property
    def line(self) -> JsonObject:
        """The entry for this run in the reply's line."""
        if self.refusal is not None:
            return {"question": self.number, "error": self.refusal}
        return {"question": self.number, "values": len(self.values), "size": len(self.payload)}


class _PendingQuestion:
    """A question and its run, which is opened once."""

    def __init__(self, session: ClientSession, number: int, question: RunQuestion, now: float) -> None:
        self._session = session
        self._number = number
        self._question = question
        self._run: Optional[Run] = None
        self._positions = {
            "cursors": question.cursors,
            "from": question.from_,
            "state": question.state,
            "plan": question.plan,
        }
        self.until = now + min(question.wait_s, SILENCE_S / 2)

    def look(self, room: int, now: float) -> Optional[RunAnswer]:
        """Return the news in about `room` bytes; None if the run has none and there is time to wait."""
        try:
            self._run = self._run or self._session.run(self._question.run)
            values, payload = cursors.read(self._run, self._positions, room)
        except (RequestError, OSError) as error:
            return RunAnswer(self._number, refusal=self._refusal(error))
        if not payload and not values["changed"] and now < self.until:
            return None
        return RunAnswer(self._number, strict_json.encode(values).encode(), payload, values["is_full"])

    def _refusal(self, error: Union[RequestError, OSError]) -> Refusal:
        try:
            self._session.run(self._question.run)
        except RequestError as gone:  # it was removed during the look
            error = gone
        return refusal_of(error, self._session.root)


def read(session: ClientSession, request: Read, _payload: bytes) -> VerbReply:
    """Return news of runs since the client's cursors.

    Waits until one run has news or a question's time is over. The line lists the answers as {question,
    values, size}. The payload has each answer's values, then its bytes.
    """
    began = time.monotonic()
    asked = [
        _PendingQuestion(session, number, parse(RunQuestion, "read", values), began)
        for number, values in enumerate(request.runs)
    ]
    while True:
        answers = _look(asked, began)
        now = time.monotonic()
        left_s = min((question.until for question in asked), default=now) - now
        rest_s = max(POLL_S, min(REST * (now - began), left_s))
        if answers or not asked or session.connection.has_input(rest_s):
            payload = b"".join(part for answer in answers for part in (answer.values, answer.payload))
            return VerbReply({"answers": [answer.line for answer in answers]}, payload)
        began = time.monotonic()


def _look(asked: List[_PendingQuestion], now: float) -> List[RunAnswer]:
    """Look at each run once.

    Each gets the same room, and the remaining room goes to runs that have more to send. A question's time is
    compared with the start of the look: runs that were asked about together are answered together, however
    long the look takes.
    """
    answers: List[RunAnswer] = []
    share, left = cursors.MAX_ANSWER_BYTES // max(1, len(asked)), cursors.MAX_ANSWER_BYTES
    for question in asked:
        if left <= 0:  # a later request has the news of the other runs
            break
        answer = question.look(share, now)
        if answer is not None:
            answers.append(answer)
            left -= answer.size
    full = [place for place, answer in enumerate(answers) if answer.is_full]
    for done, place in enumerate(full):
        before = answers[place]
        more = left // (len(full) - done)
        if more <= 0:
            break
        answer = asked[before.number].look(len(before.payload) + more, now)
        if answer is not None:
            answers[place] = answer
            left -= answer.size - before.size
    return answers


VERBS = {"read": Verb(Read, read)}
