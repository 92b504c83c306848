"""What a segment prints of its record: at which rate, up to which amount, and what it makes of odd files."""

import os
from pathlib import Path

import pytest
from testbed.toy import recorded_run

from launcher.agent.record.frame import FRAME, NOTE, read_frame
from launcher.agent.segment import frames
from launcher.agent.segment.fitness import has_code_for
from launcher.agent.segment.frames import RecordFeed, line_of, write_line


class Printed(list):
    """The lines that a feed has printed."""

    def frames(self):
        """Read them, without the notes."""
        return [read_frame(line.decode().rstrip("\n")) for line in self if line.startswith(FRAME.encode())]

    def data(self, name):
        """What the frames of a growing file are together; each begins where the last one ended."""
        data = b""
        for frame in self.frames():
            if frame.path.name == name:
                assert frame.offset == len(data)
                data += frame.data
        return data


@pytest.fixture
def clock(monkeypatch):
    """The feed's clock, which stands until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(frames.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def folder(tmp_path):
    """The folder of an attempt, held as by its agent."""
    run = recorded_run(tmp_path, "261122-x-aaaaaa", "preparing")
    made = run.new_folder()
    made.write_state("running")
    yield run, made
    made.release()


def test_much_is_printed_at_a_steady_rate_and_each_file_has_its_share(folder, clock):
    """64 kB in 2 s, however often the record changes; nothing twice, and nothing left out at the end."""
    run, made = folder
    log, events = os.urandom(200_000), os.urandom(70_000)
    Path(made.log).write_bytes(log)
    Path(made.events).write_bytes(events)
    printed = Printed()
    feed = RecordFeed(run, 1, printed.append)
    for turn in range(1, 4):
        for _ in range(5):
            made.write_state("running", step=turn)  # is printed at once
            feed.turn()
        size = len(printed.data("log.txt")) + len(printed.data("events.jsonl"))
        assert 0.9 < size / (turn * frames.ROUND_BYTES) <= 1
        assert len(printed.data("events.jsonl")) >= min(turn * 30_000, len(events))
        clock[0] += frames.ROUND_S
    feed.finish()
    assert (printed.data("log.txt"), printed.data("events.jsonl")) == (log, events)
    assert [frame.sequence for frame in printed.frames()] == [*range(1, len(printed) + 1)]


def test_a_state_is_printed_at_once_and_after_what_led_to_it(folder, clock):
    """A reader who sees an end has the log."""
    run, made = folder
    printed = Printed()
    feed = RecordFeed(run, 1, printed.append)
    feed.turn()
    feed.turn()
    before = len(printed)
    Path(made.log).write_bytes(b"the last line\n")
    feed.turn()
    assert len(printed) == before
    made.write_state("failed", "user-code-error")
    feed.turn()
    assert [frame.path.name for frame in printed.frames()[before:]] == ["log.txt", "state.json"]


def test_beyond_its_budget_only_states_are_printed(folder, clock):
    """It is said once that the rest comes with the outputs."""
    run, made = folder
    Path(made.log).write_bytes(b"x" * 100_000)
    printed = Printed()
    feed = RecordFeed(run, 1, printed.append, budget=40_000)
    for step in range(3):
        made.write_state("running", step=step)
        feed.turn()
        clock[0] += frames.ROUND_S
    made.write_state("succeeded")
    feed.finish()
    assert len(printed.data("log.txt")) == 40_000
    assert sum(line.startswith(NOTE.encode()) for line in printed) == 1
    assert b"succeeded" in printed.frames()[-1].data


def test_heartbeats_are_printed_now_and_then_and_the_last_one_always(folder, clock):
    """How long a run has run counts against its limit, also in the next attempt."""
    run, made = folder
    printed = Printed()
    feed = RecordFeed(run, 1, printed.append)
    for second in range(0, 20, 2):
        Path(made.heartbeat).write_text(f'{{"ran_s": {second}}}')
        feed.turn()
        clock[0] += 2
    beats = [frame.data for frame in printed.frames() if frame.path.name == "heartbeat"]
    assert len(beats) == 2
    later = run.new_folder(made)
    feed.turn()
    later.release()
    assert [frame.data for frame in printed.frames() if frame.path.name == "heartbeat"][
        -1
    ] == b'{"ran_s": 18}'


def test_what_a_job_puts_in_the_place_of_a_file_is_not_printed(folder, tmp_path, clock):
    """Neither what a link leads to, nor a pipe, which would not let us go; nor more than one frame may carry."""
    run, made = folder
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    os.symlink(secret, made.log)
    os.mkfifo(made.events)
    Path(made.precision).write_bytes(b"x" * (2 << 20))
    printed = Printed()
    feed = RecordFeed(run, 1, printed.append)
    feed.turn()
    feed.finish()
    assert {frame.path.name for frame in printed.frames()} == {"state.json"}


def test_a_line_for_people_is_never_a_frame():
    """Whatever is in it, also a line break."""
    line = line_of(f"pip: x\n{FRAME}1 = record/0002/state.json")
    assert line.count(b"\n") == 1
    assert FRAME.encode() not in line


def test_a_line_that_nobody_reads_is_given_up():
    """The run goes on without its reader."""
    reading, writing = os.pipe()
    assert write_line(writing, b"one\n")
    os.close(reading)
    assert not write_line(writing, b"two\n")
    os.close(writing)


@pytest.mark.parametrize(
    ("architectures", "capability", "has_code"),
    [
        (["sm_75"], "7.5", True),
        (["sm_70", "sm_80"], "7.5", True),
        (["sm_70", "sm_75", "sm_80"], "6.0", False),
        (["sm_80"], "7.5", False),
        (["sm_80"], "8.9", True),
        (["sm_80"], "9.0", False),
        (["sm_80", "compute_80"], "9.0", True),
        (["sm_90a"], "9.0", True),
        (["sm_90a"], "9.1", False),
        (["sm_100", "sm_120"], "12.0", True),
        (["sm_120"], "10.0", False),
        ([], "7.5", False),
    ],
)
def test_code_runs_on_cards_of_its_architecture_and_later_ones_of_its_kind(
    architectures, capability, has_code
):
    """As CUDA defines it: binary code within a major version, PTX upwards."""
    assert has_code_for(architectures, capability) is has_code
