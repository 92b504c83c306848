"""Whose a process is: by token, host, boot, user and start time; 10,000 random tables, and real strangers."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testbed.client import RECORDER, until
from testbed.toy import recorded_run

from launcher.remote.fate import ownership
from launcher.remote.fate.ownership import LEFTOVER, LIVE, STRANGER, Claim, Owner, ProcessEntry
from launcher.remote.record.files import write_durably
from launcher.remote.system import process

ME = 1000
CLAIMED = {"live": Claim("0101-live-aaaa", True), "ended": Claim("0101-ended-bbbb", False)}


def row_of(dice, pid):
    """Any process: of anybody, below anybody, with any word as its token, under `launch exec` or not."""
    return ProcessEntry(
        pid,
        dice.randint(0, 12),
        str(pid * 7),
        dice.choice("RSDZT"),
        dice.choice((ME, ME, 0, 1001)),
        dice.choice((None, "live", "ended", "ended", "other-host", "ende", "ended ")),
        dice.random() < 0.5,
    )


@settings(max_examples=100)
@given(st.integers(0, 1 << 64))
def test_in_random_tables_no_stranger_and_nothing_live_is_ever_a_leftover(seed):
    """Only what carries the token of a run that is over, as our own user, outside any exec, may be ended; all of that is."""
    dice = random.Random(seed)
    for _ in range(100):
        table = [row_of(dice, pid) for pid in range(2, 2 + dice.randint(0, 10))]
        judge_leftovers(table, set(dice.sample(range(2, 12), dice.randint(0, 2))))


def judge_leftovers(table, spared):
    """Hold the verdict on every process of a table against the rule, said in other words."""
    owned = ownership.judge_table(table, CLAIMED, ME, spared)
    living = {one.pid: one for one in table if one.letter != "Z"}
    for one in table:
        who = one if one.letter != "Z" else living.get(one.parent)
        is_ours = who is not None and who.uid == ME and who.token in CLAIMED
        if not is_ours:
            assert owned[one.pid] == Owner(STRANGER, None)
            continue
        is_over = who.token == "ended" and not who.is_exec and who.pid not in spared
        assert owned[one.pid] == Owner(LEFTOVER if is_over else LIVE, CLAIMED[who.token].run)
    assert owned.keys() == {one.pid for one in table}


@pytest.fixture
def make_run(tmp_path):
    """Make the record of a run below a root, by hand."""
    return functools.partial(recorded_run, tmp_path)


@pytest.fixture
def start(tmp_path):
    """Start a process that writes down every signal it gets, with a token or none; the kernel's word is its exit status."""
    started = []

    def begin(token=None, *before):
        env = {**os.environ, **({"LAUNCH_TOKEN": token} if token else {})}
        log = tmp_path / f"signals-{len(started)}"
        words = [*before, sys.executable, "-c", RECORDER, "launch", "launch-supervise"]
        with log.open("ab") as file:
            child = subprocess.Popen(words, env=env, stdout=file)
        started.append((child, log))
        until(lambda: "ready" in log.read_text(), "a process")
        return child

    yield begin
    for child, _ in started:
        child.kill()
        child.wait()


def test_a_process_is_ours_by_the_token_of_its_run_alone(tmp_path, make_run, start):
    """The run's state says whether it is needed; our name in a command line, and our own parentage, say nothing."""
    ended = make_run("0101-job-aaaa", "succeeded")
    lost = make_run("0101-job-bbbb")
    live = make_run("0101-job-cccc")
    of_ended, of_lost, of_live = (start(f"token-of-{run.id}") for run in (ended, lost, live))
    lock = live.new_folder()
    write_durably(lock.attempt, json.dumps({"boot_id": process.boot_id()}))
    stranger = start()
    asked = [one.pid for one in (of_ended, of_lost, of_live, stranger)]
    found = ownership.owners_of(str(tmp_path), [*asked, 2**22 + 1])
    assert [found[pid] for pid in asked] == [
        Owner(LEFTOVER, ended.id),
        Owner(LEFTOVER, lost.id),
        Owner(LIVE, live.id),
        Owner(STRANGER, None),
    ]
    assert found[2**22 + 1] == Owner(STRANGER, None)
    left = ownership.leftovers(str(tmp_path))
    assert {run: [one.pid for one in many] for run, many in left.items()} == {
        ended.id: [of_ended.pid],
        lost.id: [of_lost.pid],
    }
    lock.release()


@pytest.mark.parametrize(
    "changed", [{"place_id": "another"}, {"boot_id": "an earlier one"}, {"place_id": None}]
)
def test_a_record_of_another_host_or_boot_is_never_judged(tmp_path, make_run, start, changed):
    """Homes are shared, and a pid outlives no boot."""
    run = make_run("0101-job-aaaa", "failed", **changed)
    child = start(f"token-of-{run.id}")
    assert ownership.owners_of(str(tmp_path), [child.pid]) == {child.pid: Owner(STRANGER, None)}
    assert ownership.leftovers(str(tmp_path)) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process needs root")
def test_another_users_process_is_a_strangers_even_with_our_token(tmp_path, make_run, start):
    """Root reads every environment, and ends no other user's process all the same."""
    run = make_run("0101-job-aaaa", "failed")
    child = start(f"token-of-{run.id}", "setpriv", "--reuid=65534", "--clear-groups")
    assert ownership.owners_of(str(tmp_path), [child.pid]) == {child.pid: Owner(STRANGER, None)}


def test_a_run_that_was_removed_or_cannot_be_read_proves_nothing(tmp_path, make_run, start):
    """Its token is nobody's then."""
    run = make_run("0101-job-aaaa", "failed")
    child = start(f"token-of-{run.id}")
    os.unlink(run.token)
    assert ownership.owners_of(str(tmp_path), [child.pid])[child.pid].kind == STRANGER


def test_a_process_that_waits_in_the_kernel_holds_nobody_up(tmp_path, make_run, start, monkeypatch):
    """Its environment cannot be read before that answers: it is a stranger for now, and no other is asked but the one meant."""
    run = make_run("0101-job-aaaa", "failed")
    stuck, other = start(f"token-of-{run.id}"), start(f"token-of-{run.id}")
    real, table, release = ownership._entry, process.table(), threading.Event()
    for one in table:
        one.letter = "D" if one.pid == stuck.pid else one.letter
    monkeypatch.setattr(process, "table", lambda: table)
    monkeypatch.setattr(ownership, "SILENCE_S", 0.1)
    monkeypatch.setattr(
        ownership, "_entry", lambda one: release.wait() and None if one.pid == stuck.pid else real(one)
    )
    assert [one.pid for one in ownership.leftovers(str(tmp_path))[run.id]] == [other.pid]
    assert ownership.owners_of(str(tmp_path), [other.pid])[other.pid].kind == LEFTOVER
    release.set()


def test_whoever_asks_is_never_its_own_leftover(tmp_path, make_run):
    """A launch from within what is left of a run does not end itself, nor the shell that it was typed into."""
    run = make_run("0101-job-aaaa", "failed")
    code = (
        "import os, sys\nfrom launcher.remote.fate import ownership\n"
        "print(ownership.owners_of(sys.argv[1], [os.getpid(), os.getppid()]), ownership.leftovers(sys.argv[1]))"
    )
    words = f"{sys.executable} -c '{code}' {tmp_path}; true"
    env = {**os.environ, "LAUNCH_TOKEN": f"token-of-{run.id}"}
    said = subprocess.run(["sh", "-c", words], env=env, capture_output=True, text=True, check=True).stdout
    assert said.count(LIVE) == 2, said
    assert said.endswith("{}\n")


def test_a_command_of_launch_exec_beside_an_ended_run_is_no_leftover(tmp_path, make_run, start, monkeypatch):
    """It ends with its own client."""
    run = make_run("0101-job-aaaa", "failed")
    monkeypatch.setenv("LAUNCH_EXEC", "one")
    child = start(f"token-of-{run.id}")
    assert ownership.owners_of(str(tmp_path), [child.pid])[child.pid].kind == LIVE


def test_a_zombie_is_its_parents(tmp_path, make_run):
    """What is left of it goes with the parent, and only if that is ours."""
    run = make_run("0101-job-aaaa", "failed")
    code = "import os, time\nif os.fork() == 0: os._exit(0)\nprint(1, flush=True)\ntime.sleep(1000)"
    parents = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code], env={**os.environ, **env}, stdout=subprocess.PIPE
        )
        for env in ({"LAUNCH_TOKEN": f"token-of-{run.id}"}, {})
    ]
    try:
        zombies = [until(lambda one=one: zombie_of(one.pid), "a zombie") for one in parents]
        found = ownership.owners_of(str(tmp_path), zombies)
        assert [found[pid].kind for pid in zombies] == [LEFTOVER, STRANGER]
        assert [one.pid for one in ownership.leftovers(str(tmp_path))[run.id]] == [parents[0].pid]
    finally:
        for one in parents:
            one.send_signal(signal.SIGKILL)
            one.communicate()


def zombie_of(pid):
    """The pid of a zombie child, by `ps`."""
    words = ["ps", "-o", "pid=,stat=", "--ppid", str(pid)]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return next((int(line.split()[0]) for line in said.splitlines() if " Z" in line), None)
