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
from testbed.client import RECORDER, orphan, until
from testbed.toy import recorded_run

from launcher.agent.liveness import ownership
from launcher.agent.liveness.ownership import HANDED_OVER, LEFTOVER, LIVE, STRANGER, Claim, Owner
from launcher.agent.record.files import write_durably
from launcher.agent.system import process, token_processes
from launcher.agent.system.process_lineage import ProcessEntry

ME = 1000
CLAIMED = {
    "live": Claim("0101-live-aaaa", True),
    "ended": Claim("0101-ended-bbbb", False),
    "contained": Claim("0101-boxed-cccc", False, in_container=True),
}


def row_of(dice, pid):
    """Any process: of anybody, below anybody, with any word as its token, under `launch exec` or not, and of any trade."""
    name = dice.choice(("python3", "python3", "bash", "systemd", "slurmstepd"))
    return ProcessEntry(
        pid,
        dice.randint(0, 12),
        str(pid * 7),
        dice.choice("RSDZT"),
        dice.choice((ME, ME, 0, 1001)),
        dice.choice((None, "live", "ended", "ended", "ended", "contained", "other-host", "ende", "ended ")),
        dice.random() < 0.3,
        dice.random() < 0.1,
        name,
        dice.choice((None,) * 9 + ("tmux",)),
        dice.random() < 0.1,
        dice.choice((None, None, dice.randint(2, 11))),
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
        run, kind = CLAIMED[who.token].run, LIVE
        if who.pid not in spared:
            kind = LIVE if CLAIMED[who.token].is_needed or who.is_exec else LEFTOVER
            kind = HANDED_OVER if is_elsewhere(who, {each.pid: each for each in table}) else kind
        assert owned[one.pid][:2] == (kind, run)
        assert (owned[one.pid].receiver is not None) == (kind == HANDED_OVER)
    assert owned.keys() == {one.pid for one in table}


def is_elsewhere(who, table):
    """Whether a bearer lives below a tmux, or below somebody who had nothing to do with its run; said from the top down."""
    above, is_contained, agent = [], who.token == "contained", who.attended_by
    while who.pid > 1 and who not in above:
        if who.name == "systemd" and who.parent == 1 and who.uid == ME:
            break
        above.insert(0, who)
        if who.is_keeper or who.pid == agent:
            return not is_contained and any(one.server for one in above)
        who = table.get(who.parent) or ProcessEntry(who.parent, 0, "", "S", 0)
    if not above or is_contained:
        return False
    solid = [
        one for one in above if one.token == above[-1].token or not (one.letter == "Z" or one.is_exiting)
    ]
    return any(one.server for one in above) or bool(solid and solid[0].token != above[-1].token)


@pytest.fixture
def make_run(tmp_path):
    """Make the record of a run below a root, by hand."""
    return functools.partial(recorded_run, tmp_path)


@pytest.fixture
def start(tmp_path):
    """Start a process that writes down every signal it gets, with a token or none, and that init adopts; return its pid."""
    started = []

    def begin(token=None, *before):
        env = {**os.environ, **({"LAUNCH_TOKEN": token} if token else {})}
        log = tmp_path / f"signals-{len(started)}"
        started.append(
            orphan([*before, sys.executable, "-c", RECORDER, "launch", "launch-supervise"], env, log)
        )
        until(lambda: "ready" in log.read_text(), "a process")
        return started[-1]

    yield begin
    for pid in started:
        os.kill(pid, signal.SIGKILL)


def test_a_process_is_ours_by_the_token_of_its_run_alone(tmp_path, make_run, start):
    """The run's state says whether it is needed; our name in a command line, and our own parentage, say nothing."""
    ended = make_run("0101-job-aaaa", "succeeded")
    lost = make_run("0101-job-bbbb")
    live = make_run("0101-job-cccc")
    of_ended, of_lost, of_live = (start(f"token-of-{run.id}") for run in (ended, lost, live))
    lock = live.new_folder()
    write_durably(lock.attempt, json.dumps({"boot_id": process.boot_id()}))
    stranger = start()
    asked = [of_ended, of_lost, of_live, stranger]
    found = ownership.owners_of(str(tmp_path), [*asked, 2**22 + 1])
    assert [found[pid] for pid in asked] == [
        Owner(LEFTOVER, ended.id),
        Owner(LEFTOVER, lost.id),
        Owner(LIVE, live.id),
        Owner(STRANGER, None),
    ]
    assert found[2**22 + 1] == Owner(STRANGER, None)
    left = ownership.leftovers(str(tmp_path))
    assert {run: [one.pid for one in many] for run, many in left.ours.items()} == {
        ended.id: [of_ended],
        lost.id: [of_lost],
    }
    assert left.handed_over == {}
    lock.release()


@pytest.mark.parametrize(
    "changed", [{"place_id": "another"}, {"boot_id": "an earlier one"}, {"place_id": None}]
)
def test_a_record_of_another_host_or_boot_is_never_judged(tmp_path, make_run, start, changed):
    """Homes are shared, and a pid outlives no boot."""
    run = make_run("0101-job-aaaa", "failed", **changed)
    child = start(f"token-of-{run.id}")
    assert ownership.owners_of(str(tmp_path), [child]) == {child: Owner(STRANGER, None)}
    assert ownership.leftovers(str(tmp_path)) == ({}, {})


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process needs root")
def test_another_users_process_is_a_strangers_even_with_our_token(tmp_path, make_run, start):
    """Root reads every environment, and ends no other user's process all the same."""
    run = make_run("0101-job-aaaa", "failed")
    child = start(f"token-of-{run.id}", "setpriv", "--reuid=65534", "--clear-groups")
    assert ownership.owners_of(str(tmp_path), [child]) == {child: Owner(STRANGER, None)}


def test_a_run_that_was_removed_or_cannot_be_read_proves_nothing(tmp_path, make_run, start):
    """Its token is nobody's then."""
    run = make_run("0101-job-aaaa", "failed")
    child = start(f"token-of-{run.id}")
    os.unlink(run.token)
    assert ownership.owners_of(str(tmp_path), [child])[child].kind == STRANGER


def test_a_process_that_waits_in_the_kernel_holds_nobody_up(tmp_path, make_run, start, monkeypatch):
    """Its environment cannot be read before that answers: it is a stranger for now, and no other is asked but the one meant."""
    run = make_run("0101-job-aaaa", "failed")
    stuck, other = start(f"token-of-{run.id}"), start(f"token-of-{run.id}")
    real, table, release = token_processes._entry, process.table(), threading.Event()
    for one in table:
        one.letter = "D" if one.pid == stuck else one.letter
    monkeypatch.setattr(process, "table", lambda: table)
    monkeypatch.setattr(token_processes, "SILENCE_S", 0.1)
    monkeypatch.setattr(
        token_processes,
        "_entry",
        lambda one, name: release.wait() and None if one.pid == stuck else real(one, name),
    )
    assert [one.pid for one in ownership.leftovers(str(tmp_path)).ours[run.id]] == [other]
    assert ownership.owners_of(str(tmp_path), [other])[other].kind == LEFTOVER
    release.set()


def test_whoever_asks_is_never_its_own_leftover(tmp_path, make_run):
    """A launch from within what is left of a run does not end itself, nor the shell that it was typed into."""
    run = make_run("0101-job-aaaa", "failed")
    code = (
        "import os, sys\nfrom launcher.agent.liveness import ownership\n"
        "print(ownership.owners_of(sys.argv[1], [os.getpid(), os.getppid()]), ownership.leftovers(sys.argv[1]).ours)"
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
    assert ownership.owners_of(str(tmp_path), [child])[child].kind == LIVE


def test_a_zombie_is_its_parents(tmp_path, make_run):
    """What is left of it goes with the parent, and only if that is ours."""
    run = make_run("0101-job-aaaa", "failed")
    code = "import os, time\nif os.fork() == 0: os._exit(0)\ntime.sleep(1000)"
    words = [sys.executable, "-W", "ignore", "-c", code]
    token = {"LAUNCH_TOKEN": f"token-of-{run.id}"}
    parents = [orphan(words, {**os.environ, **env}, tmp_path / "output") for env in (token, {})]
    try:
        zombies = [until(lambda pid=pid: zombie_of(pid), "a zombie") for pid in parents]
        found = ownership.owners_of(str(tmp_path), zombies)
        assert [found[pid].kind for pid in zombies] == [LEFTOVER, STRANGER]
        assert [one.pid for one in ownership.leftovers(str(tmp_path)).ours[run.id]] == [parents[0]]
    finally:
        for pid in parents:
            os.kill(pid, signal.SIGKILL)


def zombie_of(pid):
    """The pid of a zombie child, by `ps`."""
    words = ["ps", "-o", "pid=,stat=", "--ppid", str(pid)]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return next((int(line.split()[0]) for line in said.splitlines() if " Z" in line), None)
