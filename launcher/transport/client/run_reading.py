"""Read the news of runs: one run per request, or the runs of many threads in one request at a time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Annotated, Any, Protocol

from pydantic import Field, ValidationError

from launcher.agent.record import strict_json
from launcher.base.json_file import JsonObject
from launcher.errors import (
    AgentError,
    ConnectionLostError,
    HostError,
    MalformedAnswerError,
    RefusedStreamError,
)
from launcher.transport.channel import DEADLINE_S, AgentChannel, AgentReply, Calls, refusal
from launcher.values.base import Record

READ_S = 10.0
"""The seconds by which an answer may exceed the requested wait before the link counts as lost."""
PACE_S = 0.01
"""The minimum seconds between two requests, for each run in a request: a request for 50 runs is sent twice a second."""


class Reader(Protocol):
    """Reads the news of runs."""

    def read(self, run: str, request: Mapping[str, Any], wait_s: float | None) -> AgentReply:
        """Return the news of a run since the cursors in `request`. Wait up to `wait_s` seconds for them."""


class SingleReader:
    """Asks about one run, with its own request."""

    def __init__(self, channel: Calls) -> None:
        """Ask over this channel."""
        self._channel = channel

    def read(self, run: str, request: Mapping[str, Any], wait_s: float | None) -> AgentReply:
        """Return the news of a run. Raises AgentError, ConnectionLostError or MalformedAnswerError."""
        until = time.monotonic() + (wait_s or 0.0)
        while True:
            left_s = max(0.0, until - time.monotonic())
            deadline_s = DEADLINE_S if wait_s is None else left_s + READ_S
            question = {"run": run, "wait_s": left_s, **request}
            reply = self._channel.call("read", deadline_s=deadline_s, runs=[question])
            answer = answers(self._channel.host, reply, 1).get(0)
            if isinstance(answer, HostError):
                raise answer
            if answer is not None:
                return answer
            if time.monotonic() > until + READ_S:
                raise ConnectionLostError(
                    self._channel.host, f"{self._channel.host}: the agent does not answer about {run}"
                )


class _QuestionAnswer(Record):
    """An answer to one question: a refusal, or the sizes of its part of the payload."""

    question: Annotated[int, Field(ge=0)]
    values: Annotated[int, Field(ge=0)] = 0
    size: Annotated[int, Field(ge=0)] = 0
    error: JsonObject | None = None


class _Answers(Record):
    answers: list[_QuestionAnswer]


def answers(host: str, reply: AgentReply, count: int) -> dict[int, AgentReply | HostError]:
    """Return an agent's answers by the numbers of the `count` questions. A question without news has none.

    Raises MalformedAnswerError if the answers cannot be told apart.
    """
    try:
        lines = _Answers.model_validate(reply.values, strict=True).answers
    except ValidationError as error:
        why = str(error.errors()[0]["msg"])
        raise MalformedAnswerError(
            host, f"{host}: the agent's answer to `read` is malformed: {why}"
        ) from error
    found: dict[int, AgentReply | HostError] = {}
    position = 0
    for line in lines:
        if line.question >= count or line.question in found:
            raise MalformedAnswerError(host, f"{host}: the agent answers a question that was not asked")
        if line.error is not None:
            found[line.question] = refusal(host, line.error)
            continue
        middle = position + line.values
        end = middle + line.size
        found[line.question] = _reply(host, reply.payload[position:middle], reply.payload[middle:end])
        position = end
    if position != len(reply.payload):
        raise MalformedAnswerError(
            host, f"{host}: the agent's answer to `read` has another length than it states"
        )
    return found


def _reply(host: str, values: bytes, payload: bytes) -> AgentReply | HostError:
    try:
        known = strict_json.decode(values)
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict):
        return MalformedAnswerError(host, f"{host}: the agent's answer about a run is malformed")
    return AgentReply(known, payload)


class _Asked:
    """A question whose thread waits for an answer."""

    def __init__(self, run: str, request: Mapping[str, Any], wait_s: float) -> None:
        self._question = {"run": run, **request}
        self._until = time.monotonic() + wait_s
        self.answer: Future[AgentReply] = Future()

    def left_s(self) -> float:
        """Return the seconds for which the thread may still wait for news."""
        return max(0.0, self._until - time.monotonic())

    def question(self) -> JsonObject:
        """Return the question with its remaining wait."""
        return {**self._question, "wait_s": self.left_s()}

    def give(self, answer: AgentReply | HostError) -> None:
        """Pass the answer to the waiting thread."""
        if isinstance(answer, HostError):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class BatchedReader:
    """Joins the questions of many threads into one request at a time, over its own channel.

    `read` is thread-safe. A thread of the reader sends the requests and distributes the answers. A question
    without an answer becomes part of the next request. Requests are spaced, so that many runs with much news
    do not cost one request each.
    """

    def __init__(self, host: str, channel: AgentChannel, open_channel: Callable[[], AgentChannel]) -> None:
        """Take over an open channel, and open another if it breaks.

        The thread starts with the first question.
        """
        self._host = host
        self._channel: AgentChannel | None = channel
        self._open_channel = open_channel
        self._changed = threading.Condition()
        self._asked: dict[int, _Asked] = {}
        self._numbers = itertools.count(1)
        self._last = 0
        self._taken = 0
        self._under_way: AgentChannel | None = None
        self._next_at = 0.0
        self._has_thread = False
        self._is_closed = False

    def read(self, run: str, request: Mapping[str, Any], wait_s: float) -> AgentReply:
        """Return the news of a run, waiting up to `wait_s` seconds for them.

        Raises AgentError or MalformedAnswerError about this run, ConnectionLostError if the link is lost.
        """
        asked = _Asked(run, request, wait_s)
        with self._changed:
            if self._is_closed:
                raise self._closed_error()
            self._last = number = next(self._numbers)
            self._asked[number] = asked
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._work, name=f"read {self._host}", daemon=True).start()
            self._hasten()
            self._changed.notify()
        try:
            return asked.answer.result()
        finally:
            with self._changed:
                self._asked.pop(number, None)  # the question is still present if this thread was interrupted

    def close(self) -> None:
        """Make all waiting threads return, and close the channel."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            channel = None if self._has_thread else self._channel
        self._fail(self._closed_error())
        if channel is not None:
            channel.close()

    def _closed_error(self) -> ConnectionLostError:
        return ConnectionLostError(self._host, f"{self._host}: the connection was closed")

    def _work(self) -> None:
        try:
            with self._opened() as channel:
                while self._is_due():
                    self._ask(channel)
        except (AgentError, RefusedStreamError) as error:  # the connection failed, not one run
            self._fail(ConnectionLostError(self._host, str(error)))
        except Exception as error:  # noqa: BLE001 - it is raised where a run is read
            self._fail(error)

    def _opened(self) -> AgentChannel:
        """Return the open channel, which this thread must close, or a new one."""
        channel, self._channel = self._channel, None
        return channel or self._open_channel()

    def _fail(self, error: Exception) -> None:
        """Raise this error in all waiting threads.

        The next question starts a new thread with a new channel.
        """
        with self._changed:
            asked, self._asked = self._asked, {}
            self._has_thread = False
            self._under_way = None
        for one in asked.values():
            one.answer.set_exception(error)

    def _is_due(self) -> bool:
        """Wait until a question exists and a request is due. Return False once the reader is closed."""
        with self._changed:
            while not self._is_closed:
                wait_s = self._next_at - time.monotonic()
                if self._asked and wait_s <= 0:
                    return True
                self._changed.wait(wait_s if self._asked else None)
            return False

    def _ask(self, channel: AgentChannel) -> None:
        """Send the present questions in one request, and distribute the answers."""
        with self._changed:
            numbers, questions = list(self._asked), list(self._asked.values())
            self._taken = self._last
        self._next_at = time.monotonic() + PACE_S * len(questions)
        deadline_s = min((one.left_s() for one in questions), default=0.0) + READ_S

        def sent() -> None:
            with self._changed:
                self._under_way = channel
                self._hasten()

        runs = [one.question() for one in questions]
        reply = channel.call("read", deadline_s=deadline_s, sent=sent, runs=runs)
        found = answers(self._host, reply, len(questions))
        with self._changed:
            self._under_way = None
            answered = [(self._asked.pop(numbers[place], None), answer) for place, answer in found.items()]
        for asked, answer in answered:
            if asked is not None:
                asked.give(answer)

    def _hasten(self) -> None:
        """Make the agent answer the present request at once, if a question has come since.

        Do so once per request. The next request includes that question.
        """
        if self._under_way is not None and self._last > self._taken:
            self._under_way.hasten()
            self._under_way = None
