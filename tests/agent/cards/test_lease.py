"""Leases by themselves: all or none, no moment in which two may have a card, and who must not judge whom."""

import json
import os
import signal
import subprocess
import sys

import pytest

from launcher.agent.cards import lease
from launcher.agent.record.files import read_json, write_durably
from launcher.agent.record.rundir import Run
from launcher.agent.system import process

CARDS = ["GPU-a", "GPU-b", "GPU-c"]


@pytest.fixture
def make_run(tmp_path):
    """Make the record of a run below a root, by hand; one that is held lives."""
    held = []

    def make(name, state="running", began=True, is_held=False, runtime=None, **changed):
        run = Run(str(tmp_path / "runs" / f"0101-{name}-aaaa"))
        run.make()
        folder = run.new_folder()
        told = {"place_id": process.host_id(), "boot_id": process.boot_id(), "kind": "prepare", **changed}
        write_durably(folder.attempt, json.dumps({**told, "runtime": runtime or {"kind": "native"}}))
        folder.write_state(state, began=began)
        if is_held:
            held.append(folder)
        else:
            folder.release()
        return run

    yield make
    for folder in held:
        folder.release()


def holders(root):
    """Who has which card, by the files alone."""
    folder = os.path.join(root, "hosts", process.host_id(), "leases")
    names = sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))
    return {name: read_json(os.path.join(folder, name))["run"] for name in names if name != ".lock"}


def test_so_many_of_the_cards_that_are_free_or_none(make_run, tmp_path):
    """The first that are free; where there are too few, nothing is changed and each holder is named."""
    first, second, third = (make_run(name, is_held=True) for name in ("one", "two", "three"))
    one = lease.take(first, CARDS, 1)
    assert one.gpus == ["GPU-a"]
    two = lease.take(second, CARDS, 2)
    assert two.gpus == ["GPU-b", "GPU-c"]
    none = lease.take(third, CARDS, 1)
    assert none.gpus == []
    assert [(busy.gpu, busy.run, busy.state) for busy in none.busy] == [
        ("GPU-a", first.id, "running"),
        ("GPU-b", second.id, "running"),
        ("GPU-c", second.id, "running"),
    ]
    one.release()
    assert lease.take(third, CARDS, 2).gpus == []  # its run lives, whoever holds the lock
    assert holders(tmp_path) == {"GPU-a": first.id, "GPU-b": second.id, "GPU-c": second.id}
    two.release()


@pytest.mark.parametrize(
    ("state", "began", "is_held", "is_free"),
    [
        ("running", True, True, False),
        ("running", True, False, True),  # nobody holds it: interrupted
        ("preparing", False, True, True),  # its `serve` keeps the lock while it lives
        ("waiting", True, False, True),
        ("succeeded", True, False, True),
        ("stop-incomplete", True, False, True),
    ],
)
def test_a_card_whose_lock_is_free_is_free_by_the_state_of_its_run(make_run, state, began, is_held, is_free):
    """Terminal, waiting, interrupted, or never begun."""
    lease.take(make_run("one", state, began, is_held), CARDS, 1).release()
    other = make_run("two", is_held=True)
    taken = lease.take(other, CARDS[:1])
    assert taken.gpus == (CARDS[:1] if is_free else [])
    taken.release()


def test_the_lock_counts_whatever_the_state_says(make_run):
    """A holder that lives has the card; one whose run has ended is waited for a moment, for it is leaving."""
    holder = make_run("one", "succeeded")
    taken = lease.take(holder, CARDS[:1])
    other = make_run("two", is_held=True)
    assert lease.take(other, CARDS[:1], wait_s=0.1).busy[0].run == holder.id
    lease.give_back(holder)
    assert lease.take(other, CARDS[:1], wait_s=0.1).busy[0].run is None
    taken.release()
    assert lease.take(other, CARDS[:1]).gpus == CARDS[:1]


def test_a_run_that_is_gone_or_that_cannot_be_seen(make_run, tmp_path):
    """Gone is free; in a container, where other runs cannot be seen, nothing of theirs is."""
    gone = Run(str(tmp_path / "runs" / "0101-gone-aaaa"))
    lease.take(gone, CARDS[:1]).release()
    other = make_run("two", is_held=True)
    taken = lease.take(other, CARDS[:1], judges=False)
    assert (taken.gpus, taken.busy[0].run) == ([], gone.id)
    assert lease.take(other, CARDS[:1]).gpus == CARDS[:1]


def test_the_record_of_another_host_is_not_judged(make_run):
    """Its state is told as written, and that is no end."""
    lease.take(make_run("one", "running", place_id="another"), CARDS[:1]).release()
    assert lease.take(make_run("two", is_held=True), CARDS[:1]).gpus == []


def test_the_agent_takes_its_card_over_without_a_moment_in_between(make_run):
    """`serve` lets go after the agent has it; nobody else gets it before, in between, or after."""
    runtime = {"kind": "native", "gpus": CARDS[:1]}
    run = make_run("one", is_held=True, runtime=runtime)
    other = make_run("two", is_held=True)
    by_serve = lease.take(run, CARDS, 1)
    assert lease.take(other, CARDS[:1]).gpus == []
    by_agent = lease.claim(run)
    assert by_agent.gpus == CARDS[:1]
    by_serve.release()
    assert lease.take(other, CARDS[:1]).gpus == []
    by_agent.release()
    lease.give_back(run)
    assert lease.take(other, CARDS[:1]).gpus == CARDS[:1]


def test_a_run_that_comes_back_takes_another_of_the_cards_that_it_may_have(make_run, tmp_path):
    """Where its own is another run's by now; not in a container, which keeps the card that it was given."""
    runtime = {"kind": "native", "gpus": CARDS[:1], "any_of": CARDS}
    run, other = make_run("one", runtime=runtime), make_run("two", is_held=True)
    lease.take(other, CARDS[:2])
    assert lease.claim(run).gpus == ["GPU-c"]
    assert holders(tmp_path) == {"GPU-a": other.id, "GPU-b": other.id, "GPU-c": run.id}
    contained = make_run("three", runtime={"kind": "docker", "gpus": CARDS[:1], "any_of": CARDS[:1]})
    assert lease.claim(contained).gpus == []


def test_of_cards_that_a_run_had_besides_only_those_that_it_takes_stay_its_own(make_run, tmp_path):
    """An agent may come by another card than the one that was leased for it; another run's is not touched."""
    runtime = {"kind": "native", "gpus": CARDS[:1], "any_of": CARDS}
    run, other = make_run("one", runtime=runtime), make_run("two", is_held=True)
    lease.take(run, CARDS[1:2]).release()
    lease.take(other, CARDS[2:])
    assert lease.claim(run).gpus == CARDS[:1]
    assert holders(tmp_path) == {"GPU-a": run.id, "GPU-c": other.id}


def test_whoever_sees_other_runs_judges_them_also_for_a_run_in_a_container(make_run):
    """`serve` does; the agent in the container does not."""
    run = make_run("one", runtime={"kind": "docker", "gpus": CARDS[:1]})
    lease.take(make_run("two", "succeeded"), CARDS[:1]).release()
    assert lease.claim(run).gpus == []
    assert lease.take_again(run).gpus == CARDS[:1]


def test_a_ticket_says_what_it_is_for_and_keeps_that_back(make_run, tmp_path):
    """It can say another thing later, from the same place; who leaves holds nothing back, nor does one that died."""
    root = str(tmp_path)
    first, second, third = (make_run(name, is_held=True) for name in ("one", "two", "three"))
    ticket = lease.draw(root, CARDS[:1], 1)
    assert lease.take(second, CARDS[:1], in_line=True, wait_s=0.0).busy[0].state == lease.QUEUED
    assert lease.take(second, CARDS[1:2], in_line=True).gpus == CARDS[1:2]
    lease.draw(root, CARDS, 2, ticket)
    assert lease.take(third, CARDS[2:], in_line=True, wait_s=0.0).gpus == []
    assert lease.take(first, CARDS[2:], in_line=True, ticket=ticket, wait_s=0.0).gpus == CARDS[2:]
    ticket.lock.release()  # as its death does
    assert lease.take(third, CARDS[:1], in_line=True).gpus == CARDS[:1]
    assert os.listdir(os.path.join(root, "hosts", process.host_id(), "queue")) == []
    ticket = lease.draw(root, CARDS, 1)
    os.unlink(ticket.path)
    ticket.leave()


def test_a_run_without_cards_claims_none(make_run, tmp_path):
    """And leaves no folder."""
    assert lease.claim(make_run("one", is_held=True)) == ([], [], [])
    assert not (tmp_path / "hosts").exists()


def test_an_agent_whose_card_is_anothers_puts_on_record_that_it_waits(make_run):
    """In a folder of its own, which a reader takes as it is."""
    run = make_run("one", runtime={"kind": "docker", "gpus": CARDS[:1]})
    other = make_run("two", is_held=True)
    lease.take(other, CARDS[:1])
    busy = lease.claim(run).busy
    lease.write_waiting(run, run.last(), busy)
    state = lease.run_state.state_of(run)
    assert (state["state"], state["reason"]) == ("waiting", "card")
    assert other.id in state["evidence"]["card"]


HOLDER = """
import subprocess, sys, time
from launcher.agent.cards import lease
from launcher.agent.record.rundir import Run
taken = lease.take(Run(sys.argv[1]), ["GPU-a"])
print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
time.sleep(1000)
"""


def test_no_child_inherits_a_lock(make_run):
    """A training that outlives its agent holds no card."""
    run = make_run("one", "succeeded")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, run.path], stdout=subprocess.PIPE, text=True)
    child = int(holder.stdout.readline())
    try:
        other = make_run("two", is_held=True)
        assert lease.take(other, ["GPU-a"], wait_s=0.0).gpus == []
        holder.kill()
        holder.wait()
        assert process.find(child) is not None
        assert lease.take(other, ["GPU-a"]).gpus == ["GPU-a"]
    finally:
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()


def test_stale_leases_are_found_and_removed_and_no_others(make_run, tmp_path):
    """Nothing is removed when it is only asked."""
    ended, live = make_run("one", "failed"), make_run("two", is_held=True)
    lease.take(ended, ["GPU-a"]).release()
    lease.take(live, ["GPU-b"]).release()
    held = lease.take(make_run("three", "failed"), ["GPU-c"])
    for dry_run in (True, False):
        assert lease.stale(str(tmp_path), dry_run=dry_run) == [("GPU-a", ended.id)]
    assert sorted(holders(tmp_path)) == ["GPU-b", "GPU-c"]
    held.release()


def test_a_card_that_a_run_lets_go_of_without_a_word_is_the_next_ones(make_run):
    """A second take by the same run is no conflict with itself."""
    run = make_run("one", is_held=True)
    first = lease.take(run, CARDS[:1])
    again = lease.take(run, CARDS[:1])
    assert first.gpus == again.gpus
    first.release()
    again.release()
