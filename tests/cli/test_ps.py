"""ps: the runs that this client knows, a line each, in terminals of any width and in a pipe."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import typer
from rich.cells import cell_len
from testbed.client import LAUNCH
from testbed.pty_run import in_terminal, without_style
from testbed.screen import Screen
from testbed.tables import mostly_long

from launcher.batch.batch_queue import NewItem, make_queue
from launcher.batch.input.batch_definition import Rules
from launcher.batch.queued_item import ItemState
from launcher.cli.commands.look.ps import _state, _time, _why
from launcher.cli.output import watch_loop
from launcher.copy import index
from launcher.copy.local_copy import LocalCopy
from launcher.errors import UnreachableError
from launcher.runs.run_listing import ListedRun
from launcher.transport.channel import AgentReply
from launcher.values.host import Host
from launcher.values.record import Summary

WHY = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 23.6 GiB, of which 1.2 GiB is free. Line 218 of train.py"
RUNS = {
    "261122-sft-w8q2zz": ("succeeded", "completed", "TITAN RTX 24 GB", 7800.0, {}),
    "261122-distill-p0x1yy": ("failed", "cuda-oom", "2 x L40S 48 GB", 962.0, {"class": "cuda-oom", "why": WHY}),
    "261122-a-long-name-of-a-job-a77ccc": ("failed", "user-code-error", "P100 16 GB", 2.0, {}),
}  # fmt: skip


@pytest.fixture
def ended(client):
    """Runs that have ended on hosts with long names, the oldest first; no host is asked about them."""
    for number, (run, (state, reason, card, took_s, evidence)) in enumerate(RUNS.items(), 1):
        job = run.split("-", 1)[1].rpartition("-")[0]
        local_copy = LocalCopy(run, client.runs)
        began = time.time() - 3 * 86400 + number
        local_copy.bind_seen(Host(name="lambda-cloud-eu-west"), "", began)
        (local_copy.folder / "plan.json").write_text(
            json.dumps({"job": job, "steps": 900, "profile": {"title": card}})
        )
        (local_copy.folder / "0001").mkdir()
        (local_copy.folder / "0001" / "attempt.json").write_text(
            json.dumps({"kind": "attempt", "time": began - 7200})
        )
        values = {"state": state, "reason": reason, "attempt": 1, "step": 412, "loss": 1.284}
        values |= {"time": began - 7200 + took_s, "evidence": evidence}
        (local_copy.folder / "0001" / "state.json").write_text(json.dumps(values))
    return list(RUNS)


@pytest.mark.parametrize(
    ("state", "reason", "shown"),
    [
        ("running", "verifying, rung 2 of 3", "verifying, rung 2 of 3"),
        ("resuming", "next-trial", "verifying"),
        ("running", None, "running, attempt 4"),
        ("resuming", "host-shutdown", "resuming, attempt 4: host-shutdown"),
    ],
)
def test_a_verification_is_no_training_that_crashed_thrice(state, reason, shown):
    """Each of its attempts is a trial."""
    row = ListedRun("lab", Summary(run="261122-sft-w8q2zz", state=state, reason=reason, attempt=4))
    assert _state(row) == shown


@pytest.mark.parametrize(
    ("state", "attempt", "is_shown"),
    [("resuming", 2, True), ("running", 3, True), ("succeeded", 3, True), ("running", 4, False), ("failed", 6, False)],
)  # fmt: skip
def test_a_remedy_is_told_of_the_attempt_that_it_led_to_alone(state, attempt, is_shown):
    """A later attempt owes its values to something else, and began from another step."""
    remedy = {"attempt": 2, "step": 40, "class": "preempted", "text": "a new attempt; resuming from step 30"}
    row = ListedRun("lab", Summary(run="261122-sft-w8q2zz", state=state, attempt=attempt, remedy=remedy))
    told = "after preempted in attempt 2: a new attempt; resuming from step 30"
    assert _why(row) == (told if is_shown else "")


def rows(text):
    return [line.split() for line in without_style(text).splitlines()]


@mostly_long(
    ("columns", "titles"),
    [
        (200, ["RUN", "JOB", "HOST", "CARD", "STATE", "STEP", "LOSS", "TIME", "AGE"]),
        (120, ["RUN", "JOB", "HOST", "CARD", "STATE", "STEP", "LOSS", "TIME", "AGE"]),
        (80, ["RUN", "JOB", "HOST", "STATE", "STEP", "TIME"]),
        (40, ["RUN", "STATE", "TIME"]),
    ],
    ci=(1, 2),
)
def test_each_run_is_one_line_of_the_terminal(client, ended, columns, titles):
    """Columns are cut, then left out; the newest run comes first."""
    lines = without_style(in_terminal(client, "ps", columns=columns)).splitlines()
    assert lines[0].split() == titles
    assert [line[:6] for line in lines[1:]] == [run[-6:] for run in reversed(ended)]
    assert max(map(cell_len, lines)) <= columns
    assert "\x1b" not in "".join(lines)
    assert ("CUDA out of" in lines[2]) == (columns >= 80)


def test_a_pipe_gets_all_of_every_text(client, ended):
    """However wide; no escape, and the same order."""
    text = client.ok("ps")
    assert WHY in text
    assert "a-long-name-of-a-job" in text
    assert "lambda-cloud-eu-west" in text
    assert "\x1b" not in text
    assert [row[0] for row in rows(text)[1:]] == [run[-6:] for run in reversed(ended)]


def test_a_run_of_a_batch_says_of_which(client, ended, monkeypatch):
    """In a column that is there only then, and in JSON; the index says it, whatever the queues of this folder are."""
    assert "BATCH" not in client.ok("ps")
    index.update(index.find(ended[1]), batch="night")
    monkeypatch.setenv("LAUNCH_RUNS", str(client.runs))
    with make_queue("claims", Rules(), [NewItem("i1", "{}", ("lab",), {})]) as queue:
        (item,) = queue.items()
        queue.step(item, ItemState.RESERVED, run=ended[0], host="lab")
    (client.runs / "batches" / "torn").mkdir()
    (client.runs / "batches" / "torn" / "queue.sqlite").write_bytes(b"no database")
    table = rows(client.ok("ps"))
    place = table[0].index("BATCH")
    assert {row[0]: row[place] for row in table[1:]} == {
        run[-6:]: "night" if run == ended[1] else "-" for run in ended
    }
    found = {row["run"]: row["batch"] for row in json.loads(client.ok("ps", "--json"))["runs"]}
    assert found == {run: "night" if run == ended[1] else None for run in ended}


def test_no_color_is_heeded(client, ended):
    """A terminal gets the titles in a dim style, unless NO_COLOR is set."""
    assert "\x1b[2mRUN" in in_terminal(client, "ps", columns=80)
    assert "\x1b" not in in_terminal(client, "ps", columns=80, NO_COLOR="1")


def test_the_newest_of_a_state(client, ended):
    """`--limit` and `--state` choose among the rows, in JSON too; that there may be more is said on standard error."""
    done = client.run("ps", "-n", "2")
    assert [row[0] for row in rows(done.stdout)[1:]] == [run[-6:] for run in ended[:0:-1]]
    assert done.stderr == "the newest 2 are shown   more   launch ps --limit 20\n"
    done = client.run("ps", "-n", "1")
    assert done.stderr == "only the newest is shown   more   launch ps --limit 10\n"
    (found,) = json.loads(client.ok("ps", "--json", "--limit", "1", "--state", "succeeded"))["runs"]
    assert found["run"] == ended[0]


def test_a_run_that_has_ended_shows_how_long_it_took(client, ended):
    """By its host's clock alone, which is two hours behind here; its age is by ours."""
    found = {row[0]: " ".join(row) for row in rows(client.ok("ps"))}
    assert "2 h 10 m 2 d" in found["w8q2zz"]
    assert "16:02 2 d" in found["p0x1yy"]
    assert "0:02 2 d" in found["a77ccc"]


@pytest.mark.parametrize(
    ("state", "took_s", "shown"),
    [
        ("reserved", 0.0, "-"),
        ("running", 65.0, "1:05"),
        ("resuming", 65.0, "1:05"),
        ("interrupted", 65.0, "1:05"),
        ("reserved", 65.0, "1:05"),
        ("stopped", 0.0, "0:00"),
        ("stopped", None, "-"),
    ],
)
def test_the_time_of_a_run_has_nothing_of_its_queue(state, took_s, shown):
    """Whether it waits, trains or has ended; without a record of its attempts it is not known."""
    ended = 1640.0 if state == "stopped" else None
    run = Summary(run="261122-sft-w8q2zz", state=state, time=1000.0, ended=ended, took_s=took_s)
    assert _time(run) == shown


@pytest.mark.slow(reason="a list that changes is looked at for seconds")
def test_watched_in_a_terminal_the_list_changes_in_place(client):
    """One list on the screen, before and after the end of a run; Ctrl-C ends it with success."""
    client.script("import os, time\nwhile not os.path.exists(os.path.expanduser('~/go')): time.sleep(0.05)\n")
    run = client.detached("--", "python", "train.py")
    env = {key: value for key, value in client.env.items() if key not in ("COLUMNS", "LINES")}
    with Screen([*LAUNCH, "ps", "--watch"], {**env, "TERM": "xterm"}, client.project, 80, 20) as screen:
        screen.until(lambda lines: "running" in lines[-1] and run[-6:] in lines[-1])
        (client.home / "go").touch()
        lines = screen.until(lambda lines: "succeeded" in lines[-1])
        assert [line.split()[0] for line in lines] == ["RUN", run[-6:]]
        screen.process.send_signal(signal.SIGINT)
        screen.to_the_end()
        assert screen.process.returncode == 0
        assert b"Traceback" not in screen.raw


def test_watched_by_a_pipe_a_list_is_printed_when_it_changes(monkeypatch, capsys):
    """Not again while it stays; a host that does not answer is asked again."""
    monkeypatch.setattr(watch_loop, "EVERY_S", 0.0)
    seen = iter(
        [["a"], ["a"], UnreachableError("lab", "lab: no answer"), ["a"], ["a", "b"], KeyboardInterrupt()]
    )

    def look():
        found = next(seen)
        if isinstance(found, BaseException):
            raise found
        return found

    with pytest.raises(typer.Exit) as end:
        watch_loop.watch(look, lambda rows, _: rows, None)
    assert end.value.exit_code == 0
    said = capsys.readouterr()
    assert said.out == "a\na\nb\n"
    assert said.err == "lab: no answer\n"


OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from launcher.cli import main
try:
    main()
finally:
    print(*opened, sep="\\n", file=sys.stderr)
"""


@pytest.fixture
def settled(client, ended):
    """Those runs, of which nothing has changed for a while; they were listed once."""
    for run in ended:
        for folder in (client.runs, client.index):
            os.utime(folder / run, (time.time() - 3600,) * 2)
    client.ok("ps")
    return ended


def rows_kept(client):
    return client.home / ".cache" / "launch" / "ended.jsonl"


def opened(client, settled):
    """Return what a listing shows and which files of runs it opens, by Python's own report."""
    words = [sys.executable, "-c", OPENED, "ps", "--json"]
    done = subprocess.run(
        words, cwd=client.project, env=client.env, capture_output=True, text=True, check=True
    )
    return done.stdout, [path for path in done.stderr.splitlines() if any(run in path for run in settled)]


def test_runs_that_ended_long_ago_are_listed_without_their_files(client, settled):
    """Ten thousand of them would be seventy thousand files. What is shown is the same."""
    rows_kept(client).unlink()
    first, read = opened(client, settled)
    assert len(read) > len(settled)
    again, read_again = opened(client, settled)
    assert (again, read_again) == (first, [])


def test_a_run_whose_mirror_has_changed_is_read_again(client, settled):
    """A newer folder, a file that is replaced, one that is moved: each changes the time of the mirror's folder."""
    folder = client.runs / settled[0] / "0002"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"state": "failed", "reason": "hang"}))
    text, read = opened(client, settled)
    assert {path for path in read if settled[0] not in path} == set()
    assert json.loads(text)["runs"][-1]["reason"] == "hang"


def test_what_an_answer_brings_changes_the_time_of_the_mirror(client, settled):
    """Else a listing would go on with what it knew: a state is replaced in a folder below."""
    local_copy = LocalCopy(settled[0], client.runs)
    before = local_copy.folder.stat().st_mtime_ns
    data = json.dumps({"state": "failed", "reason": "hang"}).encode()
    parts = [{"path": "0001/state.json", "offset": 0, "size": len(data)}]
    local_copy.sync.load()
    local_copy.sync.apply(AgentReply({"state": {"state": "failed"}, "parts": parts}, data))
    assert local_copy.folder.stat().st_mtime_ns != before
    assert json.loads(opened(client, settled)[0])["runs"][-1]["reason"] == "hang"


@mostly_long("damage", [b"", b"{", b'["0.1.0",1]\n{"torn":', b'["of another version",1]\n[]\n'], ci=(0, 2))
def test_a_damaged_list_is_made_anew(client, settled, damage):
    """It holds nothing that the mirrors do not."""
    shown = client.ok("ps", "--json")
    rows_kept(client).write_bytes(damage)
    assert client.ok("ps", "--json") == shown
    assert opened(client, settled) == (shown, [])


def test_a_run_whose_folder_was_removed_here_is_asked_about_until_it_is_forgotten(client, settled):
    """The index knows it still: its row is no longer what was kept, but what its host says."""
    shutil.rmtree(client.runs / settled[1])
    assert client.summary(settled[1])["problem"] == "gone: the host has no such run"
    assert client.summary(settled[0])["problem"] is None
    client.ok("rm", "--here", "--force", settled[1])
    assert settled[1][-6:] not in client.ok("ps")
