"""A kernel's log as one stream: whatever cuts it, each piece comes once and in order."""

import contextlib
import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.backends.kaggle import kaggle_log as logs
from launcher.backends.kaggle.kaggle_kernel import KaggleReason as Reason
from launcher.backends.kaggle.kaggle_kernel import KernelRef, NewKernel
from launcher.backends.kaggle.kaggle_log import FAILURES, follow
from launcher.errors import ServiceError, ServiceUnreachableError

REF = KernelRef("alice", "launch-toy-1")
TALKS = """
import sys, time
for number in range(60):
    print(f"step {number} é", flush=True)
    print("warning", number, file=sys.stderr, flush=True)
    time.sleep(0.03)
"""


def push(stand_in, kaggle, source=TALKS, status="RUNNING"):
    kaggle.push(NewKernel(ref=REF, source=source, machine="None", timeout_s=60))
    return stand_in.wait_for(str(REF), status)


def pieces(kaggle, position=0, **values):
    return [piece for piece in follow(kaggle, REF, position, pause_s=0.01, **values) if piece is not None]


def written(session):
    return [(number, line.stream, line.data) for number, line in enumerate(session.log)]


def seen(found):
    return [(piece.position, piece.stream, piece.text) for piece in found]


@pytest.mark.parametrize(
    "is_clean", [False, True], ids=["in the middle of a chunk", "cleanly, without END_OF_LOG"]
)
def test_cuts_lose_and_repeat_nothing(stand_in, kaggle, is_clean):
    """The stream is cut every 0.2 s; each connection replays it from its beginning."""
    stand_in.cut_streams_after_s, stand_in.is_cut_clean = 0.2, is_clean
    session = push(stand_in, kaggle)
    found = pieces(kaggle)
    assert session.is_over
    assert seen(found) == written(session)
    assert len(stand_in.calls("log")) > 3
    text = "".join(piece.text for piece in found if piece.stream == "stdout")
    assert text.splitlines() == [f"step {number} é" for number in range(60)]


def test_another_reader_goes_on_at_a_position(stand_in, kaggle):
    """While it runs, and afterwards, when the log is JSON."""
    session = push(stand_in, kaggle)
    first = []
    for piece in follow(kaggle, REF):
        first.append(piece)
        if len(first) == 10:
            break
    rest = pieces(kaggle, 10)
    assert seen([*first, *rest]) == written(session)
    late = len(session.log) - 5
    assert seen(pieces(kaggle, late)) == written(session)[late:]


def test_a_log_that_is_too_large_afterwards_is_named(stand_in, kaggle, monkeypatch):
    """Its record comes with the session's outputs."""
    push(stand_in, kaggle, "print('x' * 2000)\n", "COMPLETE")
    monkeypatch.setattr(logs, "LOG_BYTES", 1000)
    with pytest.raises(ServiceError, match="is larger than") as caught:
        pieces(kaggle)
    assert caught.value.reason == Reason.TOO_LARGE


def test_a_large_log_afterwards_comes_in_parts(stand_in, kaggle):
    """Eight megabytes, with characters that are cut by the pieces of the answer."""
    source = "import sys\nfor n in range(2000):\n    sys.stdout.write('日本' * 700); sys.stdout.flush()\n"
    session = push(stand_in, kaggle, source, "COMPLETE")
    assert "".join(piece.text for piece in pieces(kaggle)) == "日本" * 1_400_000
    assert len(session.log) > 1


def test_silence_is_no_failure(stand_in, kaggle, tmp_path):
    """A training that prints nothing for as long as many streams live is followed to its end."""
    enough = tmp_path / "enough"
    waits = (
        f"import os, time\nwhile not os.path.exists({str(enough)!r}):\n    time.sleep(0.05)\nprint('late')\n"
    )
    session, noted = push(stand_in, kaggle, waits), []
    for piece in follow(kaggle, REF, pause_s=0.01, silence_s=0.15):
        noted.append(piece)
        if noted.count(None) > FAILURES:
            enough.touch()
    assert seen([piece for piece in noted if piece]) == written(session) == [(0, "stdout", "late\n")]


def test_a_stream_that_brings_nothing_new_is_given_up(stand_in, kaggle):
    """After FAILURES cuts in a row; the caller learns of each."""
    push(stand_in, kaggle, "import time\ntime.sleep(60)\n")
    stand_in.fail("log", "lost", times=100)
    noted = []
    with pytest.raises(ServiceUnreachableError) as caught:
        noted.extend(follow(kaggle, REF, pause_s=0.01))
    assert caught.value.reason == Reason.BROKEN_OFF
    assert len(stand_in.calls("log")) == FAILURES


def test_a_log_that_is_shorter_than_what_was_read_is_named(stand_in, kaggle):
    """It is another session's, or was cut by the service."""
    push(stand_in, kaggle, "print('one')\n", "COMPLETE")
    with pytest.raises(ServiceError, match="ends after 1 pieces, 5 were read") as caught:
        pieces(kaggle, 5)
    assert caught.value.reason == Reason.LOG_REWRITTEN


def test_what_is_no_log(stand_in, kaggle):
    """Neither a page of HTML, nor JSON of another form, nor half of a log."""
    push(stand_in, kaggle, "print('one')\n", "COMPLETE")
    for values in ({"a": 1}, [1, 2], [{"data": 3}]):
        stand_in.fail("log", "answer", values=values)
        with pytest.raises(ServiceError) as caught:
            pieces(kaggle)
        assert caught.value.reason == Reason.MALFORMED
    stand_in.fail("log", "broken")
    with pytest.raises(ServiceError) as caught:
        pieces(kaggle)
    assert caught.value.reason == Reason.MALFORMED


class Answer:
    """The body of an answer that comes in pieces of a size."""

    def __init__(self, body, size, kind="application/json"):
        self.kind = kind
        self._pieces = [body[at : at + size] for at in range(0, len(body), size)]

    def pieces(self):
        """Yield them."""
        yield from self._pieces


def test_a_line_that_is_too_long_is_left_out_and_that_is_said(monkeypatch):
    """With how many bytes it had; what was printed before and after it comes."""
    monkeypatch.setattr(logs, "EVENT_BYTES", 200_000)
    texts = ["before\n", "x" * 1_000_000 + "\n", "after\n"]
    events = [{"stream_name": "stderr", "time": 1.0, "data": text} for text in texts]
    lines = [b"data: %s\n" % json.dumps(event).encode() for event in events]
    answer = Answer(b"".join([*lines, b"data: END_OF_LOG\n"]), 10_000, "text/event-stream")
    found = [logs._piece(n, event, REF).text for n, event in enumerate([*logs._events(answer, REF)][:-1])]
    left_out = f"launch leaves out {len(lines[1]) - 1} bytes that were printed at once\n"
    assert found == ["before\n", left_out, "after\n"]


EVENTS = st.lists(
    st.fixed_dictionaries({"stream_name": st.sampled_from(["stdout", "stderr"]), "time": st.floats(0, 1e6),
                           "data": st.text('a"\\\\{}[], \n\u2028日😀')})
)  # fmt: skip


@given(EVENTS, st.integers(1, 40), st.booleans())
def test_a_log_is_read_however_it_is_cut(events, size, is_ascii):
    """As Python's own reader reads it whole."""
    body = json.dumps(events, ensure_ascii=is_ascii).encode()
    assert logs._items(Answer(body, size), REF) == json.loads(body)
    stream = (
        b"".join(b"data: %s\r\n\n" % json.dumps(event).encode() for event in events) + b"data: END_OF_LOG\n"
    )
    found = [*logs._events(Answer(stream, size, "text/event-stream"), REF)]
    assert found == [*events, logs.END_OF_LOG]


def test_a_long_line_costs_what_its_length_is():
    """Eight times the length costs about eight times the time of the processor in some round, never sixty-four times."""

    def cost(size):
        event = json.dumps({"stream_name": "stdout", "data": '\\"' * (size // 4)}).encode()
        answer = Answer(b"data: %s\ndata: END_OF_LOG\n" % event, 1024, "text/event-stream")
        began = time.process_time()
        assert len([*logs._events(answer, REF)]) == 2
        return time.process_time() - began

    assert min(cost(1 << 22) / cost(1 << 19) for _ in range(5)) < 30


HOSTILE = [
    b"[" * 200_000,
    b'[{"data":' + b"[" * 200_000,
    b'[{"data":' + b'["a"],' * 200_000,
    b'[{"data":"x","time":' + b"9" * 5000 + b"}]",
    b'[{"data":"x","time":NaN}]',
    b'[{"data":"x"}]]',
    b'[{"data":"x"}}]',
    b'[{"data":"x"}] x',
    b'[{"data":"x',
    b'["data"]',
    b"[1]",
    b"{}",
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("size", [1 << 16, 1000])
def test_what_is_no_array_of_events_is_named(body, size):
    """Whatever the service sends."""
    with pytest.raises(ServiceError) as caught:
        [logs._piece(n, event, REF) for n, event in enumerate(logs._items(Answer(body, size), REF))]
    assert caught.value.reason == Reason.MALFORMED


@pytest.mark.parametrize(
    "text", [b"[" * 200_000, b"9" * 5000, b"NaN", b'{"data": NaN}', b"\xff", b'"\\ud800"']
)
def test_an_event_that_is_no_json_is_text_or_named(text):
    """A traceback is neither."""
    body = b"data: %s\ndata: END_OF_LOG\n" % text
    for event in logs._events(Answer(body, 1000, "text/event-stream"), REF):
        with contextlib.suppress(ServiceError):
            logs._piece(0, event, REF)


def test_two_readers_at_once_see_the_same(stand_in, kaggle):
    """The stream belongs to nobody."""
    stand_in.cut_streams_after_s = 0.3
    session = push(stand_in, kaggle)
    both = [[], []]
    readers = [threading.Thread(target=lambda found=found: found.extend(pieces(kaggle))) for found in both]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert seen(both[0]) == seen(both[1]) == written(session)
