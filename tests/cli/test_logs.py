"""logs: the whole of it, its last lines, its last minutes."""

import json
import time

import pytest
from testbed.tables import mostly_long

from launcher.copy.local_copy import LocalCopy
from launcher.values.host import Host

RUN = "261122-sft-w8q2zz"
BEGAN = 1_000_000.0


@pytest.fixture
def printed(client):
    """A run of two attempts that has ended; each second it printed a line, and its agent noted the size of the log every ten."""
    local_copy = LocalCopy(RUN, client.runs)
    local_copy.bind_seen(Host(name="lab"), "", time.time())
    for number, first in (("0001", 0), ("0002", 60)):
        folder = local_copy.folder / number
        folder.mkdir()
        began = BEGAN + first
        (folder / "attempt.json").write_text(json.dumps({"kind": "attempt", "attempt": 1, "time": began}))
        lines, events = b"", []
        for second in range(60):
            if second % 10 == 5:
                values = {"cpu_percent": 5.0, "log_bytes": len(lines)}
                events.append({"version": 1, "kind": "host", "time": began + second, "values": values})
            lines += b"second %d\n" % (first + second)
        (folder / "log.txt").write_bytes(lines)
        (folder / "events.jsonl").write_text(
            "".join(f"{json.dumps(event, separators=(',', ':'))}\n" for event in events)
        )
        state = {"state": "failed" if number == "0001" else "succeeded", "time": began + 60}
        (folder / "state.json").write_text(json.dumps(state))
    return client


def seconds_shown(client, *words):
    return [int(line.split()[1]) for line in client.ok("logs", RUN, *words).splitlines()]


@mostly_long("count", [0, 1, 59, 60, 61, 120, 500], ci=(1, 4))
def test_the_last_lines_are_of_all_attempts(printed, count):
    """As many as were asked for, over the border of two attempts, or all."""
    assert seconds_shown(printed, "-n", str(count)) == list(range(120))[120 - min(count, 120) :]


@mostly_long("since", [1, 9, 30, 55, 61, 75, 119, 120, 9999], ci=(2, 5))
def test_the_last_minutes_are_there_with_at_most_ten_seconds_more(printed, since):
    """Counted back from the run's end."""
    shown = seconds_shown(printed, "--since", f"{since}s")
    assert shown == list(range(shown[0], 120))
    assert max(0, 120 - since - 15) <= shown[0] <= max(0, 120 - since)


def test_a_log_without_its_last_newline_and_with_long_lines(printed):
    """A line that has not ended is a line; one that is longer than a block is shown whole."""
    log = LocalCopy(RUN, printed.runs).folder / "0002" / "log.txt"
    log.write_bytes(b"a\n" + b"x" * 200_000 + b"\nend")
    assert printed.ok("logs", RUN, "-n", "1") == "end"
    assert printed.ok("logs", RUN, "-n", "2") == "x" * 200_000 + "\nend"
    assert printed.ok("logs", RUN, "-n", "3").startswith("a\nx")
    assert printed.ok("logs", RUN, "-n", "4").startswith("second 59\na\n")


def test_without_notes_of_the_agent_everything_since_the_attempts_start_is_shown(printed):
    """As of runs of older agents: more rather than less."""
    folder = LocalCopy(RUN, printed.runs).folder / "0002"
    (folder / "events.jsonl").unlink()
    assert seconds_shown(printed, "--since", "5s") == list(range(60, 120))


def test_two_parts_at_once_are_a_mistake(printed):
    """It is said which."""
    done = printed.run("logs", RUN, "-n", "3", "--since", "5s")
    assert done.returncode == 2
    assert "give one of them" in done.stderr


def test_followed_from_its_last_line_the_rest_comes_once(client):
    """`-n 1 -f` of a live run: one old line, and all new ones."""
    client.script(
        "import os, time\n"
        "for n in range(100): print('old', n, flush=True)\n"
        "while not os.path.exists(os.path.expanduser('~/go')): time.sleep(0.02)\n"
        "for n in range(5): print('new', n, flush=True)\n"
    )
    run = client.detached("--", "python", "train.py")
    client.ok(
        "exec", run, "--", "sh", "-c", "until grep -q 'old 99' ../../record/0002/log.txt; do sleep 0.05; done"
    )
    process = client.start("logs", run, "-n", "1", "-f")
    assert process.stdout.readline() == "old 99\n"
    (client.home / "go").touch()
    out, _ = process.communicate(timeout=180)
    assert out.splitlines() == [f"new {number}" for number in range(5)]
