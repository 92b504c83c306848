"""Many runs read by one request: who has news is answered at once, each has its share, and none suffers from another."""

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from testbed.client import channel_to
from testbed.toy import recorded_run

from launcher.agent.record.rundir import Run
from launcher.agent.serving import cursors
from launcher.agent.serving.client_connection import ClientConnection
from launcher.agent.serving.cursors import MAX_ANSWER_BYTES
from launcher.agent.serving.session import ClientSession
from launcher.agent.verbs.reading import Read, read
from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError
from launcher.transport.client.run_reading import answers
from launcher.values.host import Host

MB = 1 << 20
FILE_BYTES = MB
"""No record of a run is larger."""


class Runs:
    """Some recorded runs of one root, and a client's mirrors of them."""

    def __init__(self, folder, agent, count):
        self.agent, self.folder = agent, folder
        self.names = [f"261125-many-{number:06}" for number in range(count)]
        self.runs = [recorded_run(folder / "root", name) for name in self.names]
        self.local_copies = [LocalCopy(name, folder / "mirrors") for name in self.names]

    def log(self, number, text):
        """Let a run print."""
        with open(self.runs[number].folder(1).log, "a") as file:
            file.write(text)

    def read(self, *numbers, wait_s=0.0):
        """Ask about some runs at once; return the answers by the numbers of the runs, and how long that took."""
        asked = [
            {"run": self.names[number], "wait_s": wait_s, **self.local_copies[number].sync.request()}
            for number in numbers
        ]
        began = time.monotonic()
        reply = self.agent.call("read", runs=asked)
        found = answers("box", reply, len(asked))
        return {numbers[place]: answer for place, answer in found.items()}, time.monotonic() - began

    def fetch(self, *numbers):
        """Bring the mirrors up to date."""
        while True:
            found, _ = self.read(*numbers)
            news = [self.local_copies[number].sync.apply(answer) for number, answer in found.items()]
            if all(one.is_all for one in news):
                return


@pytest.fixture
def agent(tmp_path):
    """The real agent, on this machine."""
    with channel_to(Host(name="local", root=str(tmp_path / "root"))) as agent:
        yield agent


@pytest.fixture
def many(tmp_path, agent):
    """Make so many runs."""
    return lambda count: Runs(tmp_path, agent, count)


def test_one_answer_comes_as_soon_as_any_run_has_news(many):
    """Only who has news is in it, and nobody waits for the others' time."""
    runs = many(8)
    runs.fetch(*range(8))
    writer = threading.Timer(0.3, lambda: runs.log(5, "step 1\n"))
    writer.start()
    found, took_s = runs.read(*range(8), wait_s=20.0)
    writer.join()
    assert list(found) == [5]
    assert runs.local_copies[5].sync.apply(found[5]).log[0].text == "step 1"
    assert 0.2 < took_s < 5


def test_without_news_each_is_answered_when_its_time_is_over(many):
    """The answer has the state of the one whose time it is, and says nothing of the other."""
    runs = many(2)
    runs.fetch(0, 1)
    asked = [
        {"run": name, "wait_s": wait_s, **local_copy.sync.request()}
        for name, wait_s, local_copy in zip(runs.names, (20.0, 0.3), runs.local_copies, strict=True)
    ]
    began = time.monotonic()
    found = answers("box", runs.agent.call("read", runs=asked), 2)
    assert 0.3 <= time.monotonic() - began < 5
    assert list(found) == [1]
    assert runs.local_copies[1].sync.apply(found[1]).state.state == "interrupted"


class SlowSession(ClientSession):
    """A session on a disk where each run takes a while to find."""

    def run(self, run_id):
        """Return the run."""
        time.sleep(0.02)
        return super().run(run_id)


def test_runs_whose_time_is_over_are_answered_together_however_long_a_look_takes(many, tmp_path):
    """Their time ends in the middle of the first look: none is left for another request."""
    runs = many(20)
    runs.fetch(*range(20))
    asked = [
        {"run": name, "wait_s": 0.2, **local_copy.sync.request()}
        for name, local_copy in zip(runs.names, runs.local_copies, strict=True)
    ]
    ends = os.pipe()
    with os.fdopen(ends[0], "rb") as reader, os.fdopen(ends[1], "wb") as writer:
        session = SlowSession(str(tmp_path / "root"), ClientConnection(reader.fileno(), writer.fileno()))
        reply = read(session, Read(asked), b"")
    assert [line["question"] for line in reply.values["answers"]] == list(range(20))


def test_a_word_in_the_middle_has_the_agent_answer_at_once(many):
    """As when another thread has one more question; the channel goes on."""
    runs = many(1)
    runs.fetch(0)
    asked = {"run": runs.names[0], "wait_s": 20.0, **runs.local_copies[0].sync.request()}
    hurry = threading.Timer(0.3, runs.agent.hasten)
    hurry.start()
    began = time.monotonic()
    assert answers("box", runs.agent.call("read", runs=[asked]), 1) == {}
    assert time.monotonic() - began < 5
    runs.log(0, "step 1\n")
    found, _ = runs.read(0)
    assert runs.local_copies[0].sync.apply(found[0]).log[0].text == "step 1"
    hurry.join()


def test_a_run_that_cannot_be_read_is_refused_alone(many, agent):
    """One that never was, and one that is removed while it is asked about; the third is read."""
    runs = many(2)
    runs.fetch(0, 1)
    asked = [
        {"run": name, "wait_s": 20.0, **local_copy.sync.request()}
        for name, local_copy in zip(runs.names, runs.local_copies, strict=True)
    ]
    remover = threading.Timer(0.3, lambda: Path(runs.runs[1].path).rename(runs.folder / "garbage"))
    remover.start()
    found = answers("box", agent.call("read", runs=asked), 2)
    remover.join()
    assert list(found) == [1]
    assert isinstance(found[1], AgentError)
    assert found[1].code == "no-run"
    runs.log(0, "step 1\n")
    asked.append({"run": "261125-none-aaaaaa", "cursors": {}})
    found = answers("box", agent.call("read", runs=asked), 3)
    assert [found[number].code for number in (1, 2)] == ["no-run", "no-run"]
    assert runs.local_copies[0].sync.apply(found[0]).log[0].text == "step 1"


def test_a_loud_run_starves_no_other(many):
    """It gets what is left of the room, which is more than its share; the others get all of theirs."""
    runs = many(10)
    runs.fetch(*range(10))
    runs.log(0, ("y" * 63 + "\n") * (20 * MB // 64))
    for number in range(1, 10):
        runs.log(number, f"step {number}\n")
    found, _ = runs.read(*range(10))
    assert sorted(found) == list(range(10))
    for number in range(1, 10):
        assert runs.local_copies[number].sync.apply(found[number]).log[0].text == f"step {number}"
    sizes = {number: len(answer.payload) for number, answer in found.items()}
    assert MAX_ANSWER_BYTES * 0.9 < sizes[0] <= MAX_ANSWER_BYTES
    assert found[0].values["is_full"]
    runs.local_copies[0].sync.apply(found[0])
    runs.fetch(*range(10))
    log = Path(runs.runs[0].folder(1).log).read_bytes()
    assert (runs.local_copies[0].folder / "0001" / "log.txt").read_bytes() == log


def test_loud_runs_share_the_room(many):
    """Each gets the same, and together they get all of it."""
    runs = many(4)
    runs.fetch(*range(4))
    for number in range(4):
        runs.log(number, ("y" * 63 + "\n") * (5 * MB // 64))
    found, _ = runs.read(*range(4))
    assert [len(found[number].payload) for number in range(4)] == [MAX_ANSWER_BYTES // 4] * 4


@pytest.mark.long
def test_records_as_large_as_they_may_be_fit_no_answer_together_and_all_come(many):
    """What is beyond the room comes with the next request: no answer is longer than a client takes."""
    runs = many(20)
    for run in runs.runs:
        padding = {"padding": "x" * (FILE_BYTES - 4096)}
        for path in (run.folder(1).attempt, run.folder(1).state):
            record = json.loads(Path(path).read_text())
            Path(path).unlink()
            Path(path).write_text(json.dumps({**record, "evidence": padding, "reason": None}))
    left, requests = list(range(20)), 0
    while left:
        found, _ = runs.read(*left)
        size = sum(len(answer.payload) + len(json.dumps(answer.values)) for answer in found.values())
        assert size <= MAX_ANSWER_BYTES + 4 * FILE_BYTES
        assert found
        done = [
            number for number, answer in found.items() if runs.local_copies[number].sync.apply(answer).is_all
        ]
        left = [number for number in left if number not in done]
        left.sort(key=lambda number: number in found)
        requests += 1
        assert requests < 100
    for number, run in enumerate(runs.runs):
        for name in ("attempt.json", "state.json"):
            there = Path(run.folder(1).path) / name
            assert (runs.local_copies[number].folder / "0001" / name).read_bytes() == there.read_bytes()


@pytest.mark.slow(reason="CPU time is counted over seconds")
def test_many_quiet_runs_cost_the_agent_a_fifth_of_a_core_at_most(many, agent):
    """It rests longer the more there is to look at. The kernel says what it has used."""
    runs = many(50)
    runs.fetch(*range(50))
    pid = agent._link._process.pid

    def used_s():
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    before = used_s()
    found, took_s = runs.read(*range(50), wait_s=4.0)
    assert took_s >= 4.0
    assert len(found) == 50
    assert used_s() - before < 0.3 * took_s


def test_the_sizes_that_were_waited_for_are_not_kept_for_ever(tmp_path, monkeypatch):
    """An agent may live for months, and serve very many runs."""
    monkeypatch.setattr(cursors, "_MAX_KEPT", 3)
    monkeypatch.setattr(cursors, "_awaited", {})
    for number in range(10):
        path = tmp_path / f"{number}.log"
        path.write_text("x")
        cursors._await_size(str(path), 1)
    assert list(cursors._awaited) == [str(tmp_path / f"{number}.log") for number in (7, 8, 9)]


def test_a_folder_that_another_one_follows_is_sent_whole_by_a_disk_that_shows_it_late(tmp_path, monkeypatch):
    """The client asks for it no more. Its last lines say why an attempt failed."""
    monkeypatch.setattr(cursors, "probe_of", lambda _run: SimpleNamespace(writes_afar=True))
    run = Run(str(tmp_path / "runs" / "261126-a-aaaaaa"))
    for number in (1, 2):
        folder = Path(run.folder(number).path)
        folder.mkdir(parents=True)
        (folder / "attempt.json").write_text("{}")
        (folder / "log.txt").write_text("begins\n")
    first = Path(run.folder(1).path)
    (first / "state.json").write_text('{"version": 1, "state": "running", "time": 1.0}')

    def arrive():
        state = '{"version": 1, "state": "resuming", "time": 2.0, "sizes": {"log.txt": 12}}'
        time.sleep(0.3)
        (first / "state.json").write_text(state)
        time.sleep(0.3)
        (first / "log.txt").write_text("begins\nends\n")

    with ThreadPoolExecutor() as pool:
        pool.submit(arrive)
        answer, data = cursors.read(run, {"plan": True})
    (log,) = [part for part in answer["parts"] if part["path"] == "0001/log.txt"]
    assert log["size"] == 12
    assert b"begins\nends\n" in data
    os.utime(run.folder(2).attempt, (1, 1))  # long ago, an agent was killed that left no sizes
    (first / "state.json").write_text('{"version": 1, "state": "running", "time": 1.0}')
    before = time.monotonic()
    cursors.read(run, {"plan": True})
    assert time.monotonic() - before < 1.0
