"""The mirror: hostile answers write nothing outside it, and by any road it ends as the host's bytes."""

import json
import math
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from testbed.entries import know

from launcher.agent.record.rundir import RUN_ID as RUN_ID_THERE
from launcher.agent.record.rundir import Run
from launcher.agent.serving import cursors
from launcher.copy import index
from launcher.copy.local_copy import LocalCopy, local_copies
from launcher.copy.printed_lines import parse_event
from launcher.copy.run_id import RUN_ID, find, new_run_id
from launcher.errors import ConnectionLostError, RunError, SeveralRunsError, UnknownNameError, UsageError
from launcher.runs.cleaning import keep_end
from launcher.runs.follow.refreshing import refresh
from launcher.runs.follow.summaries import remembered
from launcher.transport.channel import AgentReply
from launcher.values.host import LOCAL, Host
from launcher.values.record import Event, Summary

RUN = "0101-sft-w8q2"
PLAN = SimpleNamespace(to_file=lambda: b"{}\n")


@pytest.fixture
def local_copy(tmp_path):
    """A mirror of which 10 bytes of log lie on the disk."""
    local_copy = LocalCopy(RUN, tmp_path / "runs")
    local_copy.sync.apply(answer(part("0001/log.txt", 0, 10), data=b"0123456789"))
    return local_copy


def part(path, offset, size, **more):
    return {"path": path, "offset": offset, "size": size, **more}


def answer(*parts, data=b"", **values):
    return AgentReply({"state": {"state": "running"}, "parts": list(parts), **values}, data)


def files_below(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


NAMES = [
    "../x", "../../x", "/tmp/x", "0001/../x", "0001/../../x", "0001//log.txt", "./plan.json", "0001", "", ".", "..",
    "client.json", "run.json", "0001/lock", "0001/heartbeat", "secrets.env", "artifacts/x", "0001/log.txt\n", "0001/log.txt\0",
    "1/log.txt", "١٢٣٤/log.txt", "0001/X/log.txt", "0001/-x/log.txt", "0001/x/y/log.txt", "x/0001/log.txt", "plan.json/log.txt", "0001\\log.txt", "0000000001/log.txt",
]  # fmt: skip


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_path_that_no_mirror_has_is_refused_and_nothing_is_written(local_copy, tmp_path, name, is_whole):
    """A host names its run's own few files, or the answer is none of ours."""
    before = files_below(tmp_path)
    with pytest.raises(ConnectionLostError):
        local_copy.sync.apply(answer(part(name, 0, 1, **({"whole": True} if is_whole else {})), data=b"x"))
    assert files_below(tmp_path) == before


@pytest.mark.parametrize(
    "told",
    [
        part("0001/log.txt", -1, 1),
        part("0001/log.txt", 11, 1),
        part("0002/log.txt", 1, 1),
        part("0001/log.txt", 10, 2),
        part("0001/log.txt", 10, -1),
        part("0001/log.txt", 10, 10**30),
        part("0001/log.txt", "x", 1),
        part("0001/log.txt", None, 1),
        part("0001/log.txt", 10, [1]),
        part("0001/log.txt", math.inf, 1),
        {"path": "0001/log.txt"},
        {},
        "0001/log.txt",
        None,
    ],
    ids=repr,
)
def test_a_gap_or_a_lie_about_the_size_is_refused_and_nothing_is_lost(local_copy, tmp_path, told):
    """What the mirror holds stays; the client connects anew and asks from its own cursor."""
    with pytest.raises(ConnectionLostError):
        local_copy.sync.apply(answer(told, data=b"x"))
    assert files_below(tmp_path / "runs")[f"{RUN}/0001/log.txt"] == b"0123456789"


@pytest.mark.parametrize(
    "values",
    [
        {"state": "running"},
        {"state": [1]},
        {"last": ["x"]},
        {"last": 5},
        {"parts": {"a": 1}},
        {"parts": 3},
        {"parts": "ab"},
    ],
    ids=repr,
)
def test_an_answer_of_another_shape_is_a_lost_connection(local_copy, values):
    """Whatever a host says, the client either understands it or connects anew."""
    with pytest.raises(ConnectionLostError):
        local_copy.sync.apply(AgentReply({"state": {}, **values}, b"x"))


def test_a_plan_that_comes_in_pieces_does_not_end_the_client(local_copy):
    """The plan is sent whole; a host that does otherwise is refused, or followed: the next request can be made."""
    try:
        local_copy.sync.apply(answer(part("plan.json", 0, 2), data=b"{}"))
    except ConnectionLostError:
        pass
    assert set(local_copy.sync.request()["cursors"]) <= {"0001/log.txt"}


def test_a_plan_that_has_come_is_read_once(local_copy):
    """It never changes, and each of a run's answers asks for it."""
    assert local_copy.record.plan().steps is None
    content = b'{"steps":3}'
    local_copy.sync.apply(answer(part("plan.json", 0, len(content)), data=content))
    assert local_copy.record.plan().steps == 3
    (local_copy.folder / "plan.json").unlink()
    assert local_copy.record.plan().steps == 3


class Place:
    """A host's run folder, and clients that follow it in pieces of any size."""

    def __init__(self, folder):
        self.run = Run(str(folder / "host" / "runs" / RUN))
        self.there = Path(self.run.record)
        self.here = folder / "client"
        self.run.make()
        Path(self.run.plan).write_text('{"steps":3}')
        (self.there / "0001").mkdir()  # folders without a gap count
        self.new_client()

    def new_client(self):
        """Forget the client; another one takes up what lies on its disk."""
        self.local_copy = LocalCopy(RUN, self.here)
        self.local_copy.sync.load()

    def answer(self, local_copy, most):
        """Return what the host says to a mirror's request now, so many bytes at most, over JSON as on the wire."""
        with mock.patch.multiple(cursors, MAX_ANSWER_BYTES=most, AGAIN_S=0.0):
            values, data = cursors.read(self.run, json.loads(json.dumps(local_copy.sync.request())))
        return AgentReply(json.loads(json.dumps(values)), data)

    def read(self, most):
        """Ask once."""
        return self.local_copy.sync.apply(self.answer(self.local_copy, most))

    def drain(self, most, local_copy=None):
        """Ask until all is here."""
        local_copy = local_copy or self.local_copy
        news = [local_copy.sync.apply(self.answer(local_copy, most))]
        while not news[-1].is_all:
            news.append(local_copy.sync.apply(self.answer(local_copy, most)))
            assert len(news) < 10_000, "it never ends"
        return news

    def append(self, name, data):
        """Let the host's file grow."""
        path = self.there / name
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def assert_equal(self):
        """Hold the mirror to the host's bytes, file by file; what the host has lost is kept aside."""
        found = {name: data for name, data in files_below(self.here / RUN).items() if ".lost-" not in name}
        found.pop(".mirror.lock", None)
        assert found.pop("plan.json") == Path(self.run.plan).read_bytes()
        assert found == files_below(self.there)


@pytest.mark.parametrize(
    ("recorded", "derived", "kept"),
    [("resuming", "stopped", "stopped"), ("succeeded", "stopped", "succeeded"), ("resuming", "interrupted", "resuming")],
)  # fmt: skip
def test_an_end_that_only_the_host_can_derive_stays_after_the_removal(local_copy, recorded, derived, kept):
    """As of a job that was cancelled in Slurm: nobody can ask for it afterwards."""
    state = {"state": recorded, "reason": "ended-by-slurm", "step": 7}
    local_copy.files.write("0001/state.json", json.dumps(state).encode())
    keep_end(local_copy, Summary(run=RUN, state=derived, reason="cancelled-in-slurm"))
    last = local_copy.record.last_state()
    reason = "cancelled-in-slurm" if kept == "stopped" else "ended-by-slurm"
    assert (last.state, last.reason, last.step) == (kept, reason, 7)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


PIECES = st.sampled_from([1, 2, 7, 4095, 4096, 4097, 1 << 20])
DATA = st.binary(max_size=40) | st.builds(
    lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(4000, 9000)
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(["log.txt", "events.jsonl"]), DATA),
        st.tuples(st.just("small"), st.sampled_from(["attempt.json", "state.json"]), st.text(max_size=9)),
        st.tuples(st.just("folder")),
        st.tuples(st.just("read"), PIECES),
        st.tuples(st.just("client")),
        st.tuples(st.just("replace"), st.sampled_from(["log.txt", "events.jsonl"]), DATA),
    ),
    max_size=25,
)


def test_the_record_of_every_node_is_mirrored_byte_for_byte(place):
    """The leader writes into the numbered folder itself, each other node into one of its own below it."""
    place.append("0002/log.txt", b"leader\n")
    for node in ("node-1", "node-2"):
        (place.there / "0002" / node).mkdir()
        place.append(f"0002/{node}/log.txt", f"{node}\n".encode())
        place.append(f"0002/{node}/events.jsonl", b'{"version":1,"kind":"metric","time":1.0,"values":{}}\n')
    place.drain(1 << 20)
    place.assert_equal()
    place.append("0002/node-1/log.txt", b"more\n")
    place.new_client()
    place.drain(7)
    place.assert_equal()
    assert [place.local_copy.files.read(path).split()[0] for path in place.local_copy.record.logs()] == [
        b"leader",
        b"node-1",
        b"node-2",
    ]
    assert len(list(place.local_copy.record.events())) == 2


@pytest.mark.slow(reason="a hundred mirrors of generated changes")
@given(STEPS, st.sampled_from([7, 4096, 1 << 20]))
def test_by_any_road_the_mirror_ends_as_the_hosts_bytes(steps, most):
    """Appends, new folders, replaced files, reads of any size and new clients in any order: byte for byte the same."""
    with tempfile.TemporaryDirectory() as folder:
        place, number = Place(Path(folder)), 1
        for verb, *args in steps:
            if verb == "append":
                place.append(f"{number:04d}/{args[0]}", args[1])
            elif verb == "small":
                (place.there / f"{number:04d}").mkdir(exist_ok=True)
                (place.there / f"{number:04d}" / args[0]).write_text(args[1])
            elif verb == "folder":
                number += 1
                (place.there / f"{number:04d}").mkdir()
            elif verb == "read":
                place.read(args[0])
            elif verb == "client":
                place.new_client()
            elif (old := place.there / f"{number:04d}" / args[0]).exists():
                here = place.here / RUN / f"{number:04d}" / args[0]
                has = here.read_bytes() if here.exists() else b""
                if not args[1][: len(has)].endswith(has[-cursors.TAIL :]) or args[1].startswith(has):
                    old.write_bytes(args[1])  # with the same bytes before the cursor nobody could tell
                    place.read(1 << 20)
        place.drain(most)
        place.assert_equal()


@given(st.lists(st.text(max_size=5), min_size=1, max_size=12), st.lists(PIECES, max_size=20))
def test_every_event_is_told_once_whatever_the_pieces(words, pieces):
    """Lines cut anywhere come out whole, each once, in order, through clients that come and go."""
    lines = [
        json.dumps({"version": 1, "kind": "x", "time": 1, "values": {"w": word}}).encode() for word in words
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        place.append("0001/events.jsonl", b"\n".join(lines) + b"\n")
        told = []
        for most in pieces:
            told += place.read(most).events
        place.local_copy = LocalCopy(RUN, place.here)
        assert place.local_copy.sync.load() == told
        told += [event for news in place.drain(1 << 20) for event in news.events]
    assert [event.values["w"] for event in told] == words


LINE = '{"version":1,"kind":"x","time":1,"values":{"n":%d}}\n'
ALL = 1 << 20
LATE = [
    ("line", 1),
    ("state", "old"),
    ("ask", 0, ALL),
    ("line", 1),
    ("ask", 1, ALL),
    ("apply", 1),
    ("apply", 0),
]
TWO_CLIENTS = st.lists(
    st.one_of(
        st.tuples(st.just("line"), st.integers(1, 40)),
        st.tuples(st.just("log"), DATA),
        st.tuples(st.just("state"), st.text(max_size=9)),
        st.tuples(st.just("folder")),
        st.tuples(st.just("ask"), st.sampled_from([0, 1]), PIECES),
        st.tuples(st.just("apply"), st.sampled_from([0, 1])),
    ),
    max_size=40,
)


@given(TWO_CLIENTS, st.permutations([0, 1]))
@example([*LATE, ("line", 1), ("ask", 1, ALL)], [1, 0])
@example([*LATE, ("line", 1)], [0, 1])
@example([*LATE, ("state", "new"), ("ask", 1, ALL), ("folder",), ("apply", 1), ("line", 1)], [1, 0])
def test_two_clients_of_one_mirror_lose_nothing_and_are_each_told_every_event_once(steps, order):
    """Answers that are asked for and applied in any order, late ones among them: bytes and events are the host's."""
    with tempfile.TemporaryDirectory() as folder:
        place, number, written = Place(Path(folder)), 1, 0
        clients = [LocalCopy(RUN, place.here) for _ in range(2)]
        late, told = [None, None], [[], []]

        def apply(who):
            if late[who] is not None:
                told[who] += clients[who].sync.apply(late[who]).events
                late[who] = None

        for verb, *args in steps:
            if verb == "line":
                for _ in range(args[0]):
                    place.append(f"{number:04d}/events.jsonl", (LINE % written).encode())
                    written += 1
            elif verb == "log":
                place.append(f"{number:04d}/log.txt", args[0])
            elif verb == "state":
                (place.there / f"{number:04d}").mkdir(exist_ok=True)
                (place.there / f"{number:04d}" / "state.json").write_text(args[0])
            elif verb == "folder":
                number += 1
                (place.there / f"{number:04d}").mkdir()
            elif verb == "ask":
                apply(args[0])
                late[args[0]] = place.answer(clients[args[0]], args[1])
            else:
                apply(args[0])
        for who in order:
            apply(who)
            told[who] += [event for news in place.drain(1 << 20, clients[who]) for event in news.events]
            if who == order[0] and late[order[1]] is None:
                place.assert_equal()
        place.assert_equal()
    assert [[event.values["n"] for event in one] for one in told] == [list(range(written))] * 2


def test_a_late_answer_takes_nothing_from_a_mirror_that_is_whole(place):
    """One client has all; another applies what it was told before, and is killed: nothing is missing or old."""
    late = LocalCopy(RUN, place.here)
    for state in ("first", "last"):
        place.append("0001/events.jsonl", (LINE % 1).encode())
        (place.there / "0001" / "state.json").write_text(f'{{"state":"{state}"}}')
        place.drain(1 << 20)
        if state == "first":
            answers = [place.answer(late, 1 << 20)]
            late.sync.load()
            place.append("0001/events.jsonl", (LINE % 2).encode())
            (place.there / "0001" / "state.json").write_text('{"state":"between"}')
            answers.append(place.answer(late, 1 << 20))
    late.sync.apply(answers[1])
    place.assert_equal()
    LocalCopy(RUN, place.here).sync.apply(answers[0])
    place.assert_equal()


@pytest.mark.parametrize("text", [b"", b"x" * 4000, b"y" * 6000, b"z" * 9000], ids=len)
@pytest.mark.parametrize("is_late", [True, False])
def test_two_clients_fetch_a_file_that_is_another_again(place, text, is_late):
    """Each of them sees that the host's file began again; whichever comes last, the mirror is the new file."""
    place.append("0001/log.txt", b"x" * 5000)
    other = LocalCopy(RUN, place.here)
    for local_copy in (place.local_copy, other):
        place.drain(1 << 20, local_copy)
    (place.there / "0001/log.txt").write_bytes(text)
    late = place.answer(other, 100)
    place.drain(1 << 20)
    place.append("0001/log.txt", b"more")
    place.drain(1 << 20)
    if is_late:
        other.sync.apply(late)
    for local_copy in (other, place.local_copy):
        place.drain(1 << 20, local_copy)
    place.assert_equal()


def test_what_someone_did_to_the_mirror_is_mended_without_a_new_connection(place):
    """Files of the mirror are cut, changed and removed while a client follows: it asks again for what is missing."""
    for name in ("0001/events.jsonl", "0001/log.txt", "0002/log.txt"):
        place.append(name, b"x" * 100)
    place.drain(1 << 20)
    os.truncate(place.here / RUN / "0002/log.txt", 10)
    place.append("0002/log.txt", b"more")
    place.drain(1 << 20)
    place.assert_equal()
    (place.here / RUN / "0002/log.txt").write_bytes(b"y" * 200)
    place.append("0002/log.txt", b"more")
    place.drain(1 << 20)
    place.assert_equal()
    (place.here / RUN / "0002/log.txt").unlink()
    place.append("0002/log.txt", b"more")
    place.drain(1 << 20)
    place.assert_equal()


def test_a_full_disk_is_told_with_the_path_and_costs_nothing_that_is_there(small_disk, tmp_path):
    """No room for the log: the file is named, and once there is room the mirror becomes the host's bytes."""
    place = Place(tmp_path)
    place.here = small_disk
    place.new_client()
    place.append("0001/log.txt", b"x" * 7_000_000)
    with pytest.raises(RunError, match=r"0001/log\.txt: No space left on device"):
        place.drain(1 << 20)
    with pytest.raises(RunError, match="No space left on device"):
        LocalCopy("0101-sft-aaaa", small_disk).bind(LOCAL, "", PLAN)
    os.truncate(place.there / "0001/log.txt", 2_000_000)
    place.new_client()
    place.drain(1 << 20)
    place.assert_equal()


@pytest.mark.parametrize("name", ["state.json", "log.txt"])
def test_a_mirror_that_cannot_be_read_is_told_with_the_path(place, name):
    """A folder lies where a file belongs."""
    (place.here / RUN / "0001" / name).mkdir(parents=True)
    with pytest.raises(RunError, match=f"0001/{name} is a folder\n.*rm -r "):
        place.local_copy.sync.load()


@pytest.mark.parametrize("was_there", [True, False])
def test_only_a_folder_that_we_made_is_hidden_from_git(tmp_path, was_there):
    """`runs` may be somebody's own: what git sees of it is theirs to say."""
    runs = tmp_path / "runs"
    if was_there:
        runs.mkdir()
    LocalCopy(RUN, runs).bind(LOCAL, "", PLAN)
    LocalCopy("0101-sft-aaaa", runs).bind(LOCAL, "", PLAN)
    assert (runs / ".gitignore").exists() != was_there


def test_the_order_of_mirrors_is_that_of_their_launches(tmp_path, monkeypatch):
    """By this client's count, whatever the clocks say; runs of other clients come before, by their hosts' times."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path))
    for run, launched in (("0101-b-aaaa", 7.0), ("0101-c-aaaa", 8.0)):
        LocalCopy(run, tmp_path).bind_seen(LOCAL, "", launched)
    for run, clock in (("0101-a-aaaa", 9e9), ("0101-d-aaaa", 5.0)):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        LocalCopy(run, tmp_path).bind(LOCAL, "", PLAN)
    for run in ("0101-e-aaaa", "0101-f-aaaa"):
        (tmp_path / run).mkdir()
    know("0101-f-aaaa", tmp_path).write_text("[1]")
    wanted = [
        "0101-b-aaaa",
        "0101-c-aaaa",
        "0101-a-aaaa",
        "0101-d-aaaa",
    ]  # neither a foreign run nor a torn entry
    assert [local_copy.run for local_copy in local_copies()] == wanted
    for run in ("0101-b-aaaa", "0101-c-aaaa"):
        LocalCopy(run, tmp_path).bind(LOCAL, "", PLAN)
        LocalCopy(run, tmp_path).bind_seen(Host(name="elsewhere", address="a.b"), "", 99.0)
    assert [local_copy.run for local_copy in local_copies()] == wanted
    assert LocalCopy("0101-b-aaaa", tmp_path).host() == LOCAL  # a look by another name rebinds no run


@pytest.mark.parametrize("text", [b"", b"short", b"y" * 6000, b"z" * 9000], ids=len)
def test_a_file_that_is_another_is_fetched_again_from_its_start(place, text):
    """Truncated, or replaced by a longer one with other bytes before the cursor: the mirror is the new file."""
    place.append("0001/log.txt", b"x" * 5000)
    place.drain(1 << 20)
    (place.there / "0001/log.txt").write_bytes(text)
    place.drain(1 << 20)
    place.assert_equal()
    (lost,) = (place.here / RUN).glob("0001/log.txt.lost-*")
    assert lost.read_bytes() == b"x" * 5000  # what the host has lost, as by a loss of power, is kept aside


@pytest.mark.parametrize("settled_s", [0.0, 1e9], ids=["looked at before", "changed just now"])
def test_a_file_of_the_same_length_that_is_another_is_fetched_again(place, monkeypatch, settled_s):
    """A log that is replaced by one of equal length is the new one; one that nobody changed is not read again."""
    monkeypatch.setattr(cursors, "SETTLED_S", settled_s)
    place.append("0001/log.txt", b"old\n")
    for _ in range(2):
        place.drain(1 << 20)
    with monkeypatch.context() as patch:
        if not settled_s:
            patch.setattr(cursors, "open_regular", None)
        place.drain(1 << 20)
    (place.there / "new").write_bytes(b"new\n")
    (place.there / "new").replace(place.there / "0001/log.txt")
    place.drain(1 << 20)
    place.assert_equal()


def test_the_last_words_of_a_folder_are_fetched_though_the_next_begins_meanwhile(place, monkeypatch):
    """The old attempt's end is written between our look at its file and our look for new folders."""
    place.append("0001/log.txt", b"first\n")
    look = cursors._growth

    def look_then_go_on(path, name, *rest):
        found = look(path, name, *rest)
        if name == "0001/log.txt" and not (place.there / "0002").exists():
            place.append("0001/log.txt", b"last words\n")
            place.append("0002/log.txt", b"second\n")
        return found

    monkeypatch.setattr(cursors, "_growth", look_then_go_on)
    place.drain(1 << 20)
    place.assert_equal()


@pytest.mark.parametrize(
    "torn", [b"", b"\0" * 40, b"\x80\xff", b'{"state"', b"[1]", b'"running"', b'{"state":NaN}', b"{}"]
)
def test_a_torn_record_on_the_host_is_mirrored_as_it_lies(place, torn):
    """What a disk made of a small file ends neither the agent nor the client."""
    for name in ("attempt.json", "state.json"):
        place.append(f"0001/{name}", torn)
    assert place.drain(1 << 20)[0].state.state
    place.assert_equal()


def test_an_unfinished_last_line_is_kept_and_not_told(place):
    """Half an event is a part of the mirror's bytes, and an event when its end has come."""
    line = b'{"version":1,"kind":"x","time":1}\n'
    place.append("0001/events.jsonl", line[:10])
    assert [event for news in place.drain(1 << 20) for event in news.events] == []
    place.assert_equal()
    place.append("0001/events.jsonl", line[10:])
    assert [event.kind for news in place.drain(1 << 20) for event in news.events] == ["x"]


def test_nothing_new_costs_nothing(place):
    """Once all is here an answer carries no parts."""
    place.append("0001/log.txt", b"x")
    (place.there / "0001" / "state.json").write_text("{}")
    place.drain(1 << 20)
    values, data = cursors.read(place.run, place.local_copy.sync.request())
    assert (values["parts"], data) == ([], b"")


IDS = ["0101-sft-w8q2", "0102-sft-w8zz", "0102-x-aaaa", "0201-last-bbbb"]


@pytest.mark.parametrize(
    ("word", "run"),
    [
        ("last", 3),
        ("w8q2", 0),
        ("w8q", 0),
        ("w8z", 1),
        ("aaaa", 2),
        ("a", 2),
        ("0101", 0),
        ("0102-x", 2),
        ("x", 2),
        ("0102-sft-w8zz", 1),
    ],
)
def test_a_run_is_named_by_its_start_its_last_letters_or_last(word, run):
    """Enough of the id, from its front or of its last four letters, means the run."""
    assert find(word, IDS) == IDS[run]


@pytest.mark.parametrize("word", ["w8", "01", "0102", "0102-"])
def test_a_word_that_means_several_runs_names_them(word):
    """Never the first of several by luck."""
    with pytest.raises(UsageError, match=r"matches [234] runs: 010") as caught:
        find(word, [*IDS, "0103-sft-w8aa"])
    assert "0102-sft-w8zz" in str(caught.value)


def test_a_name_of_several_runs_gives_their_last_parts():
    """No more of a whole name can be typed. The latest comes first."""
    with pytest.raises(SeveralRunsError) as caught:
        find("mine", ["261101-mine-aaaaaa", "261101-mine-bbbbbb", "261101-mine-x-cccccc"])
    assert str(caught.value).startswith("'mine' is the name of 2 runs: bbbbbb, aaaaaa\n")
    assert "type more" not in str(caught.value)


@pytest.mark.parametrize("word", ["dn", "82"])
def test_a_name_that_is_the_start_of_another_run_means_neither(word):
    """`launch stop --now` would end a run that nobody meant."""
    runs = [f"261126-c1-{word}5gaa", f"261126-{word}-8ah3v9"]
    with pytest.raises(UsageError, match=f"'{word}' matches 2 runs: {', '.join(runs)}"):
        find(word, runs)
    assert find("8ah3v9", runs) == runs[1]
    assert find(word, runs[1:]) == runs[1]


def test_whole_letters_beat_a_longer_id_that_begins_with_them():
    """An id that is written out is that run, though another one begins with it."""
    assert find("0101-a-bbbb", ["0101-a-bbbb", "0101-a-bbbb-cccc"]) == "0101-a-bbbb"


@pytest.mark.parametrize(
    ("word", "names"), [("zzzz", IDS), ("8q2", IDS), ("ft", IDS), ("last", []), ("w8q2", [])]
)
def test_a_word_that_means_no_run_says_where_to_look(word, names):
    """The message ends with a command to paste."""
    with pytest.raises(UnknownNameError, match="launch"):
        find(word, names)


@given(st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,47}", fullmatch=True))
def test_a_fresh_id_is_one_on_both_sides(name):
    """Any job's name gives an id that client and agent take, and that a Slurm job, a kernel or an instance can have."""
    run = new_run_id(name)
    assert re.fullmatch(r"[0-9]{6}-[a-z0-9-]+-[a-z0-9]{6}", run)
    assert len(run) <= 40
    assert RUN_ID.fullmatch(run)
    assert RUN_ID_THERE.fullmatch(run)
    assert find(run.rpartition("-")[2], [run]) == run


LIKE_EVENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["version", "kind", "time", "values", "step", "rank", "attempt", "new"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.binary() | LIKE_EVENTS.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_an_event_or_none(line):
    """Torn lines, other programs' JSON and bytes of any kind end nobody."""
    assert isinstance(parse_event(line), Event | None)


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"version":' * 50_000, b"9" * 100_000, b'"\\ud800"', b"\xff\xfe"], ids=len
)
def test_lines_made_to_hurt_are_no_events(line):
    """Depth, length and broken text are told apart from events without a word."""
    assert parse_event(line) is None


def test_an_event_of_a_newer_version_is_an_event():
    """A week-long run meets a newer client in peace: unknown kinds and fields pass."""
    event = parse_event(b'{"version":9,"kind":"dream","time":1,"colour":"red","values":{"a":[1]}}')
    assert (event.version, event.kind, event.values) == (9, "dream", {"a": [1]})


EVIL_HOST = """#!{python}
import json, os
os.write(1, b"LAUNCH-AGENT 1 have\\n")
try:
    for line in open(0):
        request = json.loads(line)
        answer = dict(state=dict(state="succeeded"), files={{}})
        if request["verb"] == "runs":
            summary = json.dumps(dict(run={run!r}, state="succeeded")).encode() + b"\\n"
            os.write(1, b'{{"chunk":%d}}\\n%s{{"chunk":0}}\\n' % (len(summary), summary))
        os.write(1, json.dumps(dict(id=request["id"], ok=answer)).encode() + b"\\n")
except OSError:
    pass  # the client has left
"""


@pytest.mark.parametrize(
    "run", ["../../evil", "../evil", "/evil-absolute", ".", "..", "0101-x-aaaa/../../../evil"]
)
@pytest.mark.parametrize("verb", ["logs", "metrics"])
def test_a_host_cannot_name_a_run_that_is_a_path(client, tmp_path, verb, run):
    """A stranger's machine answers `last` with a path: it is refused, and nothing is written outside the mirrors."""
    fake = client.home / "python"
    named = f"{tmp_path}{run}" if run.startswith("/") else run
    fake.write_text(EVIL_HOST.format(python=sys.executable, run=named))
    fake.chmod(0o755)
    client.script(f"[hosts.local]\npython = '{fake}'\n", "launch.toml")
    before = files_below(tmp_path)
    done = client.run(verb, "last", "--host", "local", timeout=30)
    assert {name for name in files_below(tmp_path).keys() - before.keys() if "/runs/" not in name} == set()
    assert not list(client.home.rglob("run.json"))
    assert done.returncode != 0


class Endless:
    """A host of which every answer brings more, as a run that prints faster than the link answers."""

    def __init__(self, state, **values):
        self.runs = self
        self.asked = 0
        self._values = {"state": {"state": state}, **values}

    def read(self, _run, request):
        """Answer with the next bytes of a log."""
        self.asked += 1
        assert self.asked < 1000, "it never ends"
        offset = request["cursors"].get("0001/log.txt", {}).get("offset", 0)
        return AgentReply({**self._values, "parts": [part("0001/log.txt", offset, 1000)]}, b"x" * 1000)


@pytest.mark.parametrize(
    ("desk", "most"),
    [
        (Endless("running"), math.inf),
        (Endless("succeeded"), math.inf),
        (Endless("succeeded", is_full=True), 50_000),
    ],
    ids=["live", "ended", "too long"],
)
def test_what_is_there_by_now_is_fetched_and_no_more(tmp_path, desk, most):
    """`logs`, `metrics`, `pull` and `rm` end, even if a run or its host always has more to send."""
    refresh(desk, LocalCopy(RUN, tmp_path / "runs"), most)
    log = (tmp_path / "runs" / RUN / "0001" / "log.txt").stat().st_size
    assert 0 < log <= 50_000


@pytest.mark.parametrize("ended", [{"state": "stopped"}, {"state": "stopped", "step": 43}])
def test_the_last_step_and_its_loss_outlive_a_record_that_has_none(local_copy, ended):
    """The end of a run may be on record in a folder in which nothing was trained, or without a loss."""
    told = {"version": 1, "time": 1.0, "kind": "metric"}
    metrics = [{**told, "step": 40 + n, "values": {"loss": 1 / n}} for n in (1, 2, 3)]
    lines = "".join(f"{json.dumps(one)}\n" for one in metrics)
    last = "0001" if "step" in ended else "0002"
    for name, text in {
        "0001/events.jsonl": lines + '{"torn',
        f"{last}/state.json": json.dumps(ended),
    }.items():
        (local_copy.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (local_copy.folder / name).write_text(text)
    assert (local_copy.state().state, local_copy.record.last_step()) == ("stopped", (43, 1 / 3))


@pytest.mark.parametrize("state", [None, {"state": "running"}, {"state": "succeeded", "loss": 0.25}])
def test_the_last_loss_is_known_of_a_script_that_prints_no_steps(local_copy, state):
    """As the Trainer of Hugging Face prints it: by its epoch."""
    told = {"version": 1, "time": 1.0, "kind": "metric"}
    metrics = [{**told, "values": {"loss": 1 / n, "epoch": n}} for n in (1, 2, 4)]
    (local_copy.folder / "0001").mkdir(parents=True, exist_ok=True)
    (local_copy.folder / "0001" / "events.jsonl").write_text(
        "".join(f"{json.dumps(one)}\n" for one in metrics)
    )
    if state is not None:
        (local_copy.folder / "0001" / "state.json").write_text(json.dumps(state))
    assert local_copy.record.last_step() == (None, 0.25)


def test_what_a_run_is_bound_to_is_on_the_disk_before_it_begins(tmp_path, monkeypatch):
    """With the folders that lead there, also if an earlier command wrote the same and died: after a power cut it is known where the run is."""
    synced, sync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda one: synced.append(os.readlink(f"/proc/self/fd/{one}")) or sync(one)
    )
    local_copy = LocalCopy(RUN, tmp_path / "runs")
    entry = index.place(RUN)
    local_copy.bind(LOCAL, "a-root", PLAN)
    copy = {local_copy.folder / "plan.json", local_copy.folder, local_copy.folder.parent}
    once = {entry / "run.json", entry, *entry.parents[:3], *copy}
    assert {*map(str, once), str(tmp_path)} == {*synced}
    assert synced.index(str(entry / "run.json")) < synced.index(str(entry)) < synced.index(str(entry.parent))
    assert synced.index(str(entry.parent)) < synced.index(str(local_copy.folder))
    synced.clear()
    local_copy.bind(LOCAL, "a-root", PLAN)
    assert {*map(str, once)} == {*synced}


def test_the_jobs_number_is_the_last_one_on_record(local_copy):
    """Of a run that Slurm has started again in another job, and whose end a client has written; a run of an older version has none."""
    records = [{}, {"job_id": "7"}, {"job_id": "12"}, {"job_id": None}, {"job_id": 5}]
    numbers = []
    for number, record in enumerate(records, 1):
        folder = local_copy.folder / f"{number:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "attempt.json").write_text(json.dumps({"time": 1.0, **record}))
        numbers.append(local_copy.record.job_id())
    assert numbers == [None, "7", "12", "12", "12"]


def test_what_a_job_waits_in_its_queue_is_no_time_of_its_run(tmp_path):
    """By the record here: an agent that died left its last event, and a client writes its folder later."""
    local_copy = LocalCopy(RUN, tmp_path / "runs")
    cluster = Host.model_validate(
        {"name": "hive", "kind": "slurm", "address": "hive.example.org", "slurm": {}}
    )
    local_copy.bind_seen(cluster, "", 1000.0)
    event = {"version": 1, "kind": "metric", "step": 1, "values": {"loss": 1.0}}
    folders = [
        ({"kind": "prepare", "time": 1000.0}, {"state": "reserved", "time": 1001.0}, []),
        ({"kind": "attempt", "time": 5000.0}, {"state": "running", "time": 5002.0}, [5100.0, 5400.0]),
        ({"kind": "attempt", "time": 8000.0}, {"state": "resuming", "time": 8030.0}, []),
        ({"kind": "contact", "time": 9000.0}, {"state": "stopped", "time": 9000.0}, []),
    ]
    for number, (attempt, state, times) in enumerate(folders, 1):
        folder = local_copy.folder / f"{number:04d}"
        folder.mkdir()
        (folder / "attempt.json").write_text(json.dumps(attempt))
        (folder / "state.json").write_text(json.dumps(state))
        lines = [json.dumps({**event, "time": at}) for at in times]
        (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert (remembered(local_copy).took_s, local_copy.took_s()) == (430.0, 430.0)
    other = LocalCopy("0101-sft-aaaa", tmp_path / "runs")
    other.bind_seen(LOCAL, "", 1000.0)
    assert remembered(other).took_s is None


@pytest.mark.parametrize(
    ("state", "shown"), [({"state": "running"}, (43, 40.0)), ({"state": "stopped", "step": 43}, (43, 20.0))]
)
def test_a_record_without_an_end_goes_by_its_events(local_copy, state, shown):
    """Its last state is of its start or of a checkpoint: the agent has died since, and nobody has asked its host."""
    folder = local_copy.folder / "0001"
    told = {"step": 10, "loss": 3.0, "time": 1000.0, "took_s": 20.0, **state}
    (folder / "state.json").write_text(json.dumps(told))
    metric = {"version": 1, "kind": "metric", "step": 43, "values": {"loss": 0.5}, "time": 1020.0}
    (folder / "events.jsonl").write_text(json.dumps(metric))
    assert (local_copy.record.last_step().step, local_copy.record.took_s(None)) == shown
    assert local_copy.record.took_s(1300.0) == (320.0 if state["state"] == "running" else 20.0)


def test_a_run_that_was_removed_before_its_state_came_was_stopped(local_copy):
    """As one whose rented machine died in its first seconds: it is not shown as one that still begins."""
    assert local_copy.state() is None
    know(RUN, local_copy.folder.parent)
    local_copy.mark_freed()
    assert local_copy.state().state == "stopped"
