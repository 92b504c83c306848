"""The client's end of the channel: whatever is at the other end, an answer, a HostError, or silence with an end."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
import zlib

import pytest
from testbed.client import channel_to, processes_of, until

from launcher.errors import AgentError, ConnectionLostError, HostError, MalformedAnswerError
from launcher.transport.agent_file import agent_file
from launcher.transport.channel import MAX_NOISE, AgentChannel
from launcher.transport.connecting import connect
from launcher.values.host import Host

HELLO = b"LAUNCH-AGENT 1 have\n"
PATIENCE_S = 20


class PairLink:
    """Our end of a socket pair, with every wait cut to a moment."""

    about = "a pair"

    def __init__(self, ours, wait_s):
        self._ours = ours
        self._wait_s = wait_s
        self.recv = ours.recv
        self.sendall = ours.sendall
        self.close = ours.close

    def settimeout(self, timeout):
        """Wait no longer than the test has patience."""
        self._ours.settimeout(self._wait_s if timeout is None else min(timeout, self._wait_s))


class Peer:
    """The other end: says its script, piece by piece, then leaves or keeps still."""

    def __init__(self, script, *, leaves=True, wait_s=PATIENCE_S):
        ours, self.end = socket.socketpair()
        self.link = PairLink(ours, wait_s)
        self.heard = bytearray()
        self._threads = [
            threading.Thread(target=self._say, args=(script, leaves)),
            threading.Thread(target=self._listen),
        ]
        for thread in self._threads:
            thread.start()

    def _say(self, script, leaves):
        with contextlib.suppress(OSError):
            for piece in script:
                self.end.sendall(piece)
            if leaves:
                self.end.shutdown(socket.SHUT_WR)

    def _listen(self):
        with contextlib.suppress(OSError):
            while piece := self.end.recv(1 << 16):
                self.heard += piece

    def stop(self):
        """Hang up, and wait until both directions are done."""
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.end.close()


@pytest.fixture
def peer():
    """Make scripted peers; each is stopped at the end."""
    made = []

    def make(*script, **how):
        made.append(
            Peer(script[0] if len(script) == 1 and not isinstance(script[0], bytes) else script, **how)
        )
        return made[-1]

    yield make
    for one in made:
        one.stop()


def outcome(ask):
    """What a call gives or raises, in a thread of its own: a hang is told as one, not waited for."""
    found = []

    def work():
        try:
            found.append(ask())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test judges it
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return found[0] if found else "it hangs"


def ask(peer, **how):
    """Greet, and ask once."""
    with AgentChannel("box", peer.link) as agent:
        return agent.call("probe", **how)


def message(payload=b"", **values):
    return json.dumps({**values, **({"size": len(payload)} if payload else {})}).encode() + b"\n" + payload


NOISE = {
    "a banner": b"Welcome!\nYou have mail.\n",
    "escapes and bytes": b"\x1b[31mred\x1b[0m\n\xff\xfe\0\n",
    "something like ours": b"LAUNCH-AGENT 2 have\nxLAUNCH-AGENT 1 need\n",
    "blank lines": b"\n" * 50,
    "much": (b"x" * 1000 + b"\n") * 50,
}


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
def test_what_a_login_prints_first_is_passed_over(peer, noise):
    """The agent is heard behind any banner, in whatever pieces it comes."""
    answer = message(b"bytes", id=1, ok={"a": 1})
    found = outcome(lambda: ask(peer([noise[:7], noise[7:], HELLO[:5], HELLO[5:], answer])))
    assert (found.values, found.payload) == ({"a": 1}, b"bytes")


def endless(piece):
    while True:
        yield piece


@pytest.mark.parametrize(
    "piece",
    [b"noise\n" * 500, b"\n" * 4096, b"x" * 4096, b"\0" * 4096],
    ids=["lines", "blank lines", "no line", "NULs"],
)
def test_a_login_that_prints_without_end_is_told_as_one(peer, piece):
    """Nobody listens for ever: a HostError that names the host."""
    found = outcome(lambda: AgentChannel("box", peer(endless(piece)).link))
    assert isinstance(found, HostError)
    assert "box" in str(found)


def test_noise_up_to_the_bound_is_borne(peer):
    """The bound is on what is printed, not on how."""
    noise = b"x" * 99 + b"\n"
    found = outcome(lambda: ask(peer([noise * (MAX_NOISE // 110), HELLO, message(id=1, ok={})])))
    assert found.values == {}


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b"LAUNCH-AGENT 1 no-python\n", "Python >= 3.8"),
        (b"LAUNCH-AGENT 1 error /root/x: Permission denied\n", "/root/x: Permission denied"),
    ],
)
def test_a_host_that_cannot_run_the_agent_says_why_and_what_to_set(peer, line, part):
    """A key of launch.toml mends each of them."""
    found = outcome(lambda: AgentChannel("box", peer(line).link))
    assert isinstance(found, HostError)
    assert part in str(found)
    assert " = " in str(found)


def test_a_host_without_the_agents_file_is_handed_it(peer):
    """`need` is answered with the size of what follows and the compressed file, and nothing before them."""
    other = peer([b"LAUNCH-AGENT 1 need\n", b"\nLAUNCH-AGENT 1 have\n", message(id=1, ok={})])
    assert outcome(lambda: ask(other)).values == {}
    other.stop()
    size = 8 + int(bytes(other.heard[:8]), 16)
    assert zlib.decompress(bytes(other.heard[8:size])) == agent_file().data
    assert json.loads(bytes(other.heard[size:]))["verb"] == "probe"


ANSWERS = {
    "no JSON": b"hello there\n",
    "no object": b"[1, 2]\n",
    "a bare number": b"7\n",
    "nothing": b"null\n",
    "an empty line": b"\n",
    "bytes": b"\xff\xfe\x00\n",
    "deep": b"[" * 100_000 + b"\n",
    "a long number": b'{"id": 1, "size": ' + b"9" * 5000 + b"}\n",
    "a size that is text": b'{"id": 1, "size": "x"}\n',
    "a size that is nothing": b'{"id": 1, "size": null}\n',
    "a size that is endless": b'{"id": 1, "size": Infinity, "ok": {}}\n',
    "a size that is no number": b'{"id": 1, "size": NaN, "ok": {}}\n',
    "a size below zero": b'{"id": 1, "size": -4, "ok": {}}\n',
    "a size beyond memory": b'{"id": 1, "size": 1000000000000000, "ok": {}}\n',
    "another's id": b'{"id": 2, "ok": {}}\n',
    "no id": b'{"ok": {}}\n',
    "neither ok nor error": b'{"id": 1}\n',
    "an error that is text": b'{"id": 1, "error": "no"}\n',
    "an ok that is text": b'{"id": 1, "ok": "yes"}\n',
    "an end in the payload": b'{"id": 1, "ok": {}, "size": 100}\nshort',
    "an end in the line": b'{"id": 1, "o',
    "an end at once": b"",
}


@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_none_is_a_lost_connection(peer, said):
    """Never a success, never a hang, never an exception of another kind."""
    found = outcome(lambda: ask(peer(HELLO, said)))
    assert isinstance(found, ConnectionLostError), found
    assert found.host == "box"


@pytest.mark.parametrize(
    "script",
    [[], [HELLO], [HELLO, b'{"id": 1, "ok": {}, "size": 9}\nhalf']],
    ids=["greeting", "line", "payload"],
)
def test_a_peer_that_falls_silent_misses_its_deadline(peer, script):
    """Every wait has an end."""
    found = outcome(lambda: ask(peer(script, leaves=False, wait_s=0.2)))
    assert isinstance(found, ConnectionLostError)
    assert "deadline" in str(found)


def test_the_deadline_of_a_call_is_the_callers(peer):
    """A short `deadline_s` is kept, whatever the usual one is."""
    began = time.monotonic()
    found = outcome(lambda: ask(peer(HELLO, leaves=False), deadline_s=0.2))
    assert isinstance(found, ConnectionLostError)
    assert time.monotonic() - began < PATIENCE_S


def test_a_line_without_end_is_cut_off(peer, monkeypatch):
    """An answer longer than any of ours is not read into memory."""
    monkeypatch.setattr("launcher.transport.channel.MAX_LINE", 1 << 20)
    found = outcome(lambda: ask(peer(iter([HELLO, *[b"x" * (1 << 16)] * 200]), leaves=False)))
    assert isinstance(found, ConnectionLostError)
    assert "does not end" in str(found)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("disk-full", "disk full on box: /root/x\n  make room   launch gc --host box"),
        ("quota", "disk quota used up on box: /root/x\n  make room"),
        ("read-only", "read-only file system on box: /root/x\n  the host's kernel log has the cause"),
    ],
)
def test_a_disk_that_refuses_is_named_with_its_host(peer, code, words):
    """And with what to do, whatever was asked."""
    found = outcome(lambda: ask(peer(HELLO, message(id=1, error={"code": code, "message": "/root/x"}))))
    assert str(found).startswith(words)


def test_a_refusal_keeps_its_code_and_loses_its_escapes(peer):
    """A host's words reach the terminal as words: no colours, no cursor, no title."""
    evil = "no\x1b[2J\x1b]0;owned\x07 \r\x9b31m\u202edone"
    found = outcome(lambda: ask(peer(HELLO, message(id=1, error={"code": "os", "message": evil}))))
    assert isinstance(found, AgentError)
    assert found.code == "os"
    assert str(found).startswith("box: no")
    assert all(char.isprintable() for char in str(found))


@pytest.mark.parametrize(
    "said", [b"\x1b]0;owned\x07\n", b"LAUNCH-AGENT 1 error \x1b[2J\x07gone\n"], ids=["answer", "greeting"]
)
def test_no_message_carries_a_terminal_escape(peer, said):
    """Whatever the host printed in the wrong place is shown harmlessly."""
    script = [said] if said.startswith(b"LAUNCH") else [HELLO, said]
    found = outcome(lambda: ask(peer(script)))
    assert isinstance(found, HostError)
    assert "\x1b" not in str(found)
    assert "\x07" not in str(found)


def test_a_stream_that_its_filler_tears_closes_the_link(peer):
    """The agent sees the end of the connection, never half a tree that looks whole."""
    other = peer([HELLO], leaves=False)

    def fill(sink):
        sink.write(b"half")
        raise RuntimeError("torn")

    agent = AgentChannel("box", other.link)
    found = outcome(lambda: agent.send_stream("ship", b"{}", fill, run="x"))
    assert isinstance(found, RuntimeError)
    other.stop()
    assert bytes(other.heard).endswith(b'{"chunk":4}\nhalf')


def test_a_stream_ends_with_its_answer(peer):
    """The chunks are one stream, and the answer behind them is the call's."""
    chunks = [
        message(b"ab", chunk=2),
        message(b"cdef", chunk=4),
        b'{"chunk":0}\n',
        message(id=1, ok={"files": {}}),
    ]
    taken = []
    with AgentChannel("box", peer([HELLO, *chunks]).link) as agent:
        answer = agent.receive_stream("send", lambda stream: taken.extend([stream.read(3), stream.read(9)]))
    assert (taken, answer.values) == ([b"abc", b"def"], {"files": {}})


def test_a_stream_that_is_longer_than_announced_is_an_error(peer):
    """What the reader did not ask for is neither kept nor read on for ever."""
    chunks = [message(b"ab", chunk=2), *[message(b"x" * 1000, chunk=1000)] * 50]
    with (
        AgentChannel("box", peer([HELLO, *chunks]).link) as agent,
        pytest.raises(MalformedAnswerError, match="the host sent more bytes than it announced"),
    ):
        agent.receive_stream("send", lambda stream: stream.read(2))


def test_a_chunk_beyond_all_measure_is_refused_before_it_is_read(peer):
    """A host that announces 200 MB at once gets no such memory."""
    huge = json.dumps({"chunk": 1, "size": 200_000_000}).encode() + b"\n"
    with (
        AgentChannel("box", peer([HELLO, huge], leaves=False).link) as agent,
        pytest.raises(ConnectionLostError, match="malformed message"),
    ):
        agent.receive_stream("send", lambda stream: stream.read(2))


def test_a_refusal_in_a_streams_place_is_told(peer):
    """No chunk comes, an error does."""
    refusal = message(id=1, error={"code": "no-run", "message": "gone"})
    with AgentChannel("box", peer([HELLO, refusal]).link) as agent, pytest.raises(AgentError, match="gone"):
        agent.receive_stream("send", lambda stream: stream.read(10))


@pytest.fixture
def agent(tmp_path):
    """The real agent, on this machine."""
    with channel_to(Host(name="local", root=str(tmp_path / "root"))) as agent:
        yield agent


def test_the_real_agent_refuses_verbs_it_does_not_know(agent):
    """Only what is in its table, whatever its code is called; and it goes on."""
    for verb in ("", "nope", "serve", "__class__", "clear_away", "run"):
        with pytest.raises(AgentError) as caught:
            agent.call(verb)
        assert caught.value.code == "unknown-verb", verb
        assert agent.call("ping").values == {}


IDS = [
    "../../etc", "/etc", "", ".", "..", "0101-sft-w8q2/..", "0101-sft-w8q2\n", "0101-../..-w8q2", "0101-sft-w8q2\0",
    "\u0660\u0661\u0660\u0661-sft-w8q2", None, 7, ["0101-sft-w8q2"], {},
]  # fmt: skip


def test_the_real_agent_takes_no_path_for_a_run(agent, tmp_path):
    """A run is named by its id: no verb looks, let alone writes, anywhere else."""
    agent.call("ping")
    before = sorted(tmp_path.rglob("*"))
    for verb in (
        "create",
        "ship",
        "start",
        "resume",
        "read",
        "wish",
        "outputs",
        "manifest",
        "send",
        "remove",
    ):
        for run in IDS:
            with pytest.raises(AgentError) as caught:
                agent.call(verb, run=run, runs=[{"run": run}])
            assert caught.value.code == "bad-run", (verb, run)
        assert sorted(tmp_path.rglob("*")) == before, verb


def test_the_real_agent_refuses_a_wrong_argument_by_its_name_and_goes_on(agent):
    """A mistake in a request costs neither the connection nor what it holds."""
    with pytest.raises(AgentError, match="sweep: dry_run must be true or false, not 'no'") as caught:
        agent.call("sweep", dry_run="no")
    assert caught.value.code == "bad-argument"
    with pytest.raises(AgentError, match="the plan is not JSON") as caught:
        agent.call("create", b"{", run="0101-sft-w8q2")
    assert caught.value.code == "bad-payload"
    assert agent.call("ping").values == {}


def test_the_real_agent_says_that_a_run_is_not_there(agent):
    """The id is one; the run is not."""
    for verb in ("ship", "start", "resume", "wish", "outputs", "manifest", "remove"):
        with pytest.raises(AgentError) as caught:
            agent.call(verb, b"[]" if verb == "manifest" else b"", run="0101-sft-w8q2", wish="stop")
        assert caught.value.code == "no-run", verb
        assert agent.call("ping").values == {}


def test_a_request_names_as_many_files_as_an_answer(tmp_path):
    """Of a data set of small files each is named: the agent answers, and does not hang up."""
    with channel_to(Host(name="local", root=str(tmp_path / "root"))) as agent:
        with pytest.raises(AgentError) as caught:
            agent.call("contents", run="0101-sft-w8q2", files=["0" * 64] * 200_000)
        assert caught.value.code == "no-run"
        assert agent.call("ping").values == {}


def test_a_run_that_was_prepared_and_never_started_is_gone_with_its_client(tmp_path):
    """A second client cannot ship into it, and nothing of it stays."""
    host = Host(name="local", root=str(tmp_path))
    with channel_to(host) as first, channel_to(host) as second:
        first.call("create", b"{}", run="0101-sft-w8q2")
        for verb in ("ship", "start"):
            with pytest.raises(AgentError) as caught:
                second.call(verb, run="0101-sft-w8q2")
            assert caught.value.code == "not-prepared"
        with pytest.raises(AgentError) as caught:
            second.call("create", b"{}", run="0101-sft-w8q2")
        assert caught.value.code == "run-exists"
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_whose_agent_was_killed_before_its_code_came_is_given_up(tmp_path):
    """It is removed, and its id is refused from then on, to a client too that was held up on its way here."""
    host = Host(name="local", root=str(tmp_path))
    run = tmp_path / "runs" / "0101-sft-w8q2"
    first = channel_to(host)
    first.call("create", b"{}", run=run.name)
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not processes_of(tmp_path), "the end of the agent")
    first.close()
    with channel_to(host) as second:
        assert second.call("outlook", run=run.name).values["half_made"]
        assert second.call("forgo", run=run.name).values == {"begun": False}
        with pytest.raises(AgentError) as caught:
            second.call("create", b"{}", run=run.name)
        assert (caught.value.code, run.exists()) == ("forgone", False)


def test_a_run_that_somebody_makes_is_not_given_up(tmp_path):
    """It may be about to begin; nothing of it is removed."""
    host = Host(name="local", root=str(tmp_path))
    with channel_to(host) as first, channel_to(host) as second:
        first.call("create", b"{}", run="0101-sft-w8q2")
        assert second.call("forgo", run="0101-sft-w8q2").values == {"begun": True}
        assert (tmp_path / "runs" / "0101-sft-w8q2").is_dir()


def test_a_root_that_cannot_be_written_is_told_with_the_key_to_set(tmp_path):
    """A file in the place of the root: the folder, the reason, `root = …`."""
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="root = ") as caught:
        connect(Host(name="local", root=str(tmp_path / "file")))
    assert str(tmp_path / "file") in str(caught.value)
