"""A host that sends without end, or a byte at a time: a program at the other end of a channel, and every call has an end."""

import signal
import stat
import sys

import pytest

from launcher.errors import ConnectionLostError, HostError, MalformedAnswerError
from launcher.transport import channel
from launcher.transport.client import host_client
from launcher.transport.connecting import connect
from launcher.values.host import Host

PATIENCE_S = 20
AGENT = """#!{python}
import json, os, sys, time
def say(text): os.write(1, text if isinstance(text, bytes) else text.encode())
def message(payload=b"", **values):
    return json.dumps({{**values, **({{"size": len(payload)}} if payload else {{}})}}).encode() + b"\\n" + payload
def drip(text, gap_s=0.05):
    for byte in text:
        say(bytes([byte])); time.sleep(gap_s)
try:
    {greeting}
    request = sys.stdin.buffer.readline()
    {answer}
except BrokenPipeError:
    pass
"""
HELLO = r'say("\nLAUNCH-AGENT 1 have " + "a" * 32 + "\n")'


@pytest.fixture
def host(tmp_path):
    """Make hosts whose agent is this program, in place of ours."""

    def make(answer, greeting=HELLO):
        path = tmp_path / "agent"
        path.write_text(AGENT.format(python=sys.executable, greeting=greeting, answer=answer))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return Host(name="box", python=str(path), root=str(tmp_path / "root"))

    return make


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Bounds of a second or two in place of minutes; the test itself has an end."""
    for module, name in (
        (channel, "GREETING_S"), (host_client, "LISTING_S"), (host_client, "SENDING_S"), (host_client, "SHORT_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 1.0)
    monkeypatch.setattr(host_client, "MAX_LINES", 1 << 20)

    def hang(_number, _frame):
        raise AssertionError("the call was held open")

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)


SHORT = {
    "unrequested answers": "while True: say(message(id=None, ok={}))",
    "the same with bytes": "while True: say(message(b'x' * (1 << 20), id=None, ok={}))",
    "a line a byte at a time": "drip(b'{' + b' ' * 100000)",
    "bytes behind a line, one at a time": 'say(b\'{"id": 1, "ok": {}, "size": 100000}\\n\'); drip(b\'x\' * 100000)',
    "blanks": "while True: say(b' ' * 65536)",
}


@pytest.mark.parametrize("answer", SHORT.values(), ids=SHORT)
def test_a_short_question_has_an_end(host, answer):
    """Whatever comes in place of its answer."""
    with connect(host(answer)) as desk, pytest.raises(ConnectionLostError):
        desk.runs.remaining("0101-sft-w8q2")


def test_a_greeting_has_an_end(host):
    """A login that prints a byte now and then is given up as one that prints nothing is."""
    with pytest.raises(HostError):
        connect(host("pass", greeting="drip(b'x' * 100000)"))


STREAMS = {
    "signs of life and nothing else": "while True: say(message(b'1\\n' * 1000, chunk=1))",
    "rows without end": 'while True: say(message(b\'{"run":"0101-sft-w8q2","state":"failed"}\\n\' * 99, chunk=1))',
    "chunks of a byte": "drip_chunks = [(say(message(b' ', chunk=1)), time.sleep(0.05)) for _ in range(100000)]",
    "a row now and then": (
        '[(say(message(b\'{"run":"0101-sft-w8q2","state":"failed"}\\n\', chunk=1)), time.sleep(0.05)) for _ in range(9999)]'
    ),
    "answers in the stream": "while True: say(message(id=None, ok={}))",
}


@pytest.mark.parametrize("answer", STREAMS.values(), ids=STREAMS)
def test_a_listing_has_an_end(host, answer):
    """It costs bounded time and memory, and no row of it is believed."""
    with (
        connect(host(answer)) as desk,
        pytest.raises((ConnectionLostError, MalformedAnswerError)),
    ):
        desk.runs.summaries()


def test_a_host_that_only_says_that_it_is_reading_is_given_up(host):
    """A list of files may take hours; a thousand signs of life a second are none."""
    with (
        connect(host(STREAMS["signs of life and nothing else"])) as desk,
        pytest.raises(MalformedAnswerError),
    ):
        desk.runs.outputs("0101-sft-w8q2", lambda _read: None)


def test_a_file_that_comes_a_byte_at_a_time_is_given_up(host):
    """It was announced with a size; at this rate it would take for ever."""
    with connect(host(STREAMS["chunks of a byte"])) as desk, pytest.raises(ConnectionLostError):
        desk.runs.send("0101-sft-w8q2", [("artifacts/a", 0, 100_000)], lambda stream: stream.read(100_000))


PRINTED = {
    "nothing on no stream": "while True: say(message(stream=0))",
    "nothing on standard output": "while True: say(message(stream=1))",
    "bytes on a stream that is none": "while True: say(message(b'x' * 1000, stream=7))",
}


@pytest.mark.parametrize("answer", PRINTED.values(), ids=PRINTED)
def test_a_command_that_prints_nothing_for_ever_is_given_up(host, answer):
    """What a command prints may be endless, and is shown; this is not printed."""
    with connect(host(answer)) as desk, pytest.raises(ConnectionLostError):
        desk.runs.execute("0101-sft-w8q2", ["true"], lambda _stream, _data: None, lambda: False)


def test_what_comes_slowly_but_steadily_is_waited_for(host):
    """A link of a few kilobytes a second carries a long answer longer than the deadline."""
    text = '\'{"id": 1, "ok": {"left": ["\' + \'x\' * 40000 + \'"]}}\\n\''
    answer = f"text = ({text}).encode()\n    for start in range(0, len(text), 2000): say(text[start : start + 2000]); time.sleep(0.1)\n    sys.stdin.read()"
    with connect(host(answer)) as desk:
        assert desk.runs.remaining("0101-sft-w8q2") == ["x" * 40000]
