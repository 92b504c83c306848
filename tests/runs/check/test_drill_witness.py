"""What `launch drill` sees from outside: a shell that breaks off, a `ps` that sees nothing."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from types import SimpleNamespace

import pytest

from launcher.base.resources import data_folder
from launcher.copy.run_files import RunFiles
from launcher.drill import drill_faults, drilling, host_shell
from launcher.drill.drill_outcome import FAULTS, Planned
from launcher.errors import HostError
from launcher.runs.cleaning import Freeing

PLACE = drill_faults.DrillPlace(
    "/nowhere/runs/261125-drill-w1tn3s", "/nowhere/cache/drill-w1tn3s", "drill-w1tn3s"
)
"""Of an id that no other test has: the folders of killed agents of this machine bear the end of theirs."""


class Machine:
    """A desk of a host whose shell is ours, after what a login does there."""

    host = "A"

    def __init__(self, login=":", **variables):
        self.login, self.env = login, {**os.environ, **variables}

    def open_program(self, words):
        """Start it."""
        ours, theirs = socket.socketpair()
        with theirs:
            shell = subprocess.Popen(
                ["sh", "-c", f'{self.login}\nexec "$@"', "sh", *words],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env=self.env,
            )
        weakref.finalize(ours, shell.wait)
        return ours


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Nobody waits for the last processes of a run."""
    monkeypatch.setattr(drilling, "LEAVE_S", 0)


@contextlib.contextmanager
def running(words, **variables):
    """A process of this machine."""
    process = subprocess.Popen(words, env={**os.environ, **variables})
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("script", ["kill -9 $$", "echo all; kill -9 $$"])
def test_a_shell_that_breaks_off_has_not_said_all(script):
    """As when the link is lost, or the host kills it: that is no empty answer."""
    with pytest.raises(HostError, match="broke off"):
        host_shell.run(Machine(), script)


@pytest.mark.parametrize("script", ["echo model", "echo model; exit 1", "echo model; cat /nowhere"])
def test_what_a_login_prints_is_no_answer(script):
    """Whatever the script's exit code is."""
    assert host_shell.run(Machine("printf 'Welcome!'"), script) == "model\n"


def fake(folder, name, script):
    """A program of that name; return a PATH on which it is the first."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_nothing_is_left_where_nothing_is():
    """The shell that looks, and what it starts, do not count."""
    assert drilling._left(Machine(), PLACE) == []


@pytest.mark.parametrize("columns", ["40", "200"])
def test_a_process_is_seen_however_narrow_the_terminal_is(columns):
    """`ps` cuts lines to COLUMNS; a run's folder comes late in them."""
    with running([sys.executable, "-c", "import time; time.sleep(60)", "x" * 300, PLACE.folder]) as pid:
        (seen,) = drilling._left(Machine(COLUMNS=columns), PLACE)
    assert seen.split()[:2] == ["process", str(pid)]


def test_a_process_that_bears_no_name_of_the_run_is_seen_by_its_variables():
    """What a training starts may be called anything."""
    if not os.path.exists("/proc/self/environ"):
        pytest.skip("no /proc here")
    with running(["sleep", "60"], LAUNCH_PLACE=PLACE.folder) as pid:
        time.sleep(0.1)
        (seen,) = drilling._left(Machine(), PLACE)
    assert seen.split() == ["process", str(pid), "sleep", "60"]


def test_the_socket_folder_of_a_dead_agent_is_seen(tmp_path):
    """By the run's id: its own agent has left by then."""
    names = [tmp_path / f"launch-agent-12345678-{run}-87654321" for run in (PLACE.run[-6:], "other1")]
    for name in names:
        name.mkdir()
    for is_removed in (False, True):
        seen = drilling._left(Machine(TMPDIR=str(tmp_path)), PLACE, is_removed=is_removed)
        assert seen == [f"socket folder {names[0]}"]


@pytest.mark.parametrize(("name", "script"), [("ps", "exit 1"), ("ps", "echo 1 init"), ("awk", "exit 127")])
def test_a_host_whose_processes_cannot_be_seen_is_not_taken_for_a_clean_one(tmp_path, name, script):
    """Without ps, or with one that shows too little, or without awk."""
    (told,) = drilling._left(Machine(PATH=fake(tmp_path, name, script)), PLACE)
    assert "cannot be seen" in told


def test_two_drills_of_one_second_keep_their_ledgers_apart(tmp_path, monkeypatch):
    """Each has a folder of its own."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path))
    monkeypatch.setattr(time, "strftime", lambda _format: "261125-120000")
    assert [drilling._evidence_folder("lab").name for _ in range(2)] == [
        "lab-261125-120000",
        "lab-261125-120000-2",
    ]


def test_a_host_that_stays_away_ends_its_row():
    """`follow` would wait for ever."""
    away = HostError("A", "A: no answer")
    drilling._Following(time.monotonic() + 60).lost(away, 1, 1.0)
    with pytest.raises(HostError, match="no answer"):
        drilling._Following(time.monotonic() - 1).lost(away, 9, 30.0)


def started(**more):
    """A row's run that has begun."""
    desk = SimpleNamespace(
        close=lambda: None,
        runs=SimpleNamespace(location=lambda run: SimpleNamespace(path=f"/root/runs/{run}")),
    )
    local_copy = SimpleNamespace(
        run="261125-drill-aaaaaa", short="aaaaaa", state=lambda: SimpleNamespace(state="succeeded")
    )
    return SimpleNamespace(host="A", client=desk, local_copy=local_copy, **more)


def test_ctrl_c_during_the_removal_counts_once_it_is_done(monkeypatch):
    """The next row does not begin."""
    done = []

    def remove(*_args, **_more):
        signal.raise_signal(signal.SIGINT)
        done.append("removed")

    monkeypatch.setattr(drilling, "_cleared_away", remove)
    with pytest.raises(KeyboardInterrupt):
        drilling._clear_away(started(), PLACE, keeps_local_copy=False)
    assert done == ["removed"]


def test_ctrl_c_while_a_run_starts_removes_its_ledger_too(monkeypatch):
    """It is held back until the run has begun, and by then the ledger may be there."""
    places = []
    monkeypatch.setattr(drilling, "_job", lambda *_args: None)
    monkeypatch.setattr(
        drilling,
        "launch",
        lambda *_args: started(interrupts=SimpleNamespace(release=lambda: signal.SIGINT)),
    )
    monkeypatch.setattr(
        drilling, "_clear_away", lambda _started, place, **_more: places.append(place and place.folder)
    )
    ready = SimpleNamespace(client=started().client, request=None)
    with pytest.raises(KeyboardInterrupt):
        drilling._row(ready, Planned(FAULTS[0]), None, SimpleNamespace(progress=lambda _text: None))
    assert places == ["/root/runs/261125-drill-aaaaaa"]


def test_the_copy_of_a_run_that_is_still_there_is_kept(monkeypatch):
    """Without it nothing here would name the run."""
    monkeypatch.setattr(drilling, "open_client", lambda *_args: contextlib.nullcontext(Machine()))
    monkeypatch.setattr(drilling, "free", lambda *_args: Freeing(None, "its container cannot be removed"))
    monkeypatch.setattr(drilling, "remove_here", lambda *_args, **_more: pytest.fail("it was removed"))
    place = PLACE._replace(ledger="/nowhere/at/all")
    assert drilling._clear_away(started(), place, keeps_local_copy=False) == "its container cannot be removed"


def test_a_copy_that_misses_the_last_bytes_is_not_mended_before_it_is_judged(tmp_path):
    """What a follower has missed, the drill does not fetch."""
    place = PLACE._replace(folder=str(tmp_path / "host"), ledger=str(tmp_path / "cache"))
    for side, text in (("host/record", "all of it"), ("here", "all of")):
        (tmp_path / side / "0001").mkdir(parents=True)
        (tmp_path / side / "0001" / "log.txt").write_text(text)
    local_copy = SimpleNamespace(folder=tmp_path / "here", files=RunFiles(tmp_path / "here"), run=place.run)
    state = SimpleNamespace(state="succeeded", reason=None)
    row = drilling._judged(Machine(), Planned(FAULTS[0]), local_copy, place, state, [], tmp_path)
    assert "the local copy differs from the host: record/0001/log.txt" in row.problems


@pytest.mark.parametrize(("size", "model"), [(200_000, "m"), (1000, "torn")])
def test_a_training_that_goes_on_from_a_torn_checkpoint_ends_with_another_model(
    tmp_path, monkeypatch, size, model
):
    """So a product that does not check what it resumes from is seen."""
    monkeypatch.setitem(sys.modules, "launcher_worker", SimpleNamespace())
    spec = importlib.util.spec_from_file_location("drill_job", data_folder("jobs") / "drill.py")
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    training = job.Training(None)
    training.model = "m"
    training.write(str(tmp_path))
    os.truncate(tmp_path / "weights.bin", size)
    assert job.Training(str(tmp_path)).model == model
