"""The verb `read`: what is new in runs since a client's cursors. One request may ask about many runs.

It is answered as soon as one of them has news, with all that have. A run that cannot be read has a refusal of its own.
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

POLL_S = 0.01
REST = 4.0
"""After a look at all runs the agent rests so many times as long as that took: many runs take a fifth of a core."""


class RunQuestion(NamedTuple):
    """A client's cursors in a run, and how long to wait for something new; see cursors.py."""

    run: RunId
    wait_s: float = 0.0
    cursors: Optional[JsonObject] = None
    from_: int = 0
    state: Optional[List[Any]] = None
    plan: bool = False


class Read(NamedTuple):
    """A question about each of some runs."""

    runs: List[JsonObject]


class RunAnswer(NamedTuple):
    """What is new in a run: values as JSON, then bytes; or a refusal. `number` is that of the question."""

    number: int
    values: bytes = b""
    payload: bytes = b""
    is_full: bool = False
    refusal: Optional[Refusal] = None

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return len(self.values) + len(self.payload)

    @property
    def line(self) -> JsonObject:
        """What the line of the answer says of it."""
        if self.refusal is not None:
            return {"question": self.number, "error": self.refusal}
        return {"question": self.number, "values": len(self.values), "size": len(self.payload)}


class _PendingQuestion:
    """A question, and the run that it is about, which is the same at each look."""

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
        """Return what is new, in about `room` bytes; None if nothing is and there is time to wait."""
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
        except RequestError as gone:  # it was removed in the middle of the look
            error = gone
        return refusal_of(error, self._session.root)


def read(session: ClientSession, request: Read, _payload: bytes) -> VerbReply:
    """Return what is new in runs since the client's cursors, waiting until one has news, or a question's time is over.

    The line lists the answers as {question, values, size}: the payload has the values of each, then its bytes.
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
    """Look at each run once. Each has the same room; what is left of all room goes to those that have more to send.

    Whose time is over is decided by when the look began: runs that were asked about together are answered together,
    however long it takes.
    """
    answers: List[RunAnswer] = []
    share, left = cursors.MAX_BYTES // max(1, len(asked)), cursors.MAX_BYTES
    for question in asked:
        if left <= 0:  # the others are the first of the next request
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
