"""Healthy scripts that say nothing for long, by a clock that a test sets on: none is ended, whatever the time."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from testbed.clock import Clock

from launcher.agent.attempt.hang_watch import BUSY, IDLE, UNSEEN, HangWatch
from launcher.agent.attempt.progress import AttemptProgress
from launcher.agent.system.process_use import Use

TURN_S = 5.0
HOURS = 60.0


class For(NamedTuple):
    """What a script does for some minutes: its share of a core, the bytes and connections' bytes a minute, and the rest.

    `children`: it starts a program every so many minutes. `events` are reported at the beginning, `prints` every so many minutes.
    `card`: nvidia-smi reports use. `frozen`: its agent does not run either, as in a paused container. `hidden`: nobody sees its processes.
    """

    minutes: float
    cores: float = 0.0
    bytes: float = 0.0
    network: float = 0.0
    children: float = 0.0
    prints: float = 0.0
    card: bool = False
    frozen: bool = False
    hidden: bool = False
    events: tuple[dict, ...] = ()


def event(kind: str, step: int | None = None, **values) -> dict:
    return {"kind": kind, "step": step, "values": values, "source": "hook", "rank": 0}


BEGIN = event("begin", step=0, steps=3)
END, DONE = event("end"), event("done", 3)
WAITS = For(59)
"""As a hang looks, but shorter."""
HEALTHY = {
    # downloads
    "a model comes in pieces to a file": (For(9 * HOURS, cores=0.02, bytes=4e6),),
    "a slow one, a piece in a minute": (For(5 * HOURS, bytes=2e4),),
    "into memory, by a library that calls recv": (For(3 * HOURS, network=3e5),),
    "by a child that prints nothing": (For(2 * HOURS, cores=0.03, bytes=1e6, children=300),),
    "a mirror that does not answer, and is left after its time": (For(45), For(30, bytes=1e6), For(45)),
    "a retry every ten minutes that reads the resolver's file": tuple(For(9.9) if n % 2 else For(0.1, bytes=9e3) for n in range(60)),
    # a queue's lock
    "a file lock of another run": (WAITS, For(1, cores=0.5, prints=1), WAITS),
    "a lock that is tried by open and read": (For(8 * HOURS, cores=0.001, bytes=100),),
    "a cache that another process fills, looked at by a program": (For(4 * HOURS, children=5),),
    "a place in a queue of a service, asked over one connection": (For(6 * HOURS, network=2e3),),
    "a lock of a day, in a job that says so": (For(24 * HOURS),),
    "a barrier until the other node is up": (For(50), For(60, cores=1.0)),
    # compilation
    "torch.compile in one process": (For(100, cores=1.0),),
    "kernels by nvcc": (For(150, cores=2.0, bytes=1e6, children=2),),
    "an autotuner that waits for the card": (For(3 * HOURS, cores=0.004, card=True),),
    "XLA on a thread, with pauses": tuple(For(30) if n % 2 else For(10, cores=1.0) for n in range(20)),
    # preprocessing
    "a tokenizer on all cores": (For(5 * HOURS, cores=16.0, bytes=1e7),),
    "a map over a memory-mapped set": (For(4 * HOURS, cores=0.8),),
    "a slow disk": (For(3 * HOURS, cores=0.005, bytes=1e5),),
    "a shuffle of indices": (For(20, cores=1.0), For(40, cores=0.02)),
    "workers that come and go": (For(2 * HOURS, cores=0.002, children=0.5),),
    "a paused container": (For(10, cores=1.0), For(20 * HOURS, frozen=True), For(10), For(30, cores=1.0)),
    # evaluation
    "before the first step": (For(0.1, events=(BEGIN,)), For(4 * HOURS, cores=1.0, card=True)),
    "by a model behind HTTP": (For(3 * HOURS, cores=0.005, network=5e3),),
    "after the training, on the card": (For(0.1, events=(BEGIN, END)), For(3 * HOURS, cores=0.005, card=True)),
    "on another node": (For(12 * HOURS, hidden=True),),
    # after the end
    "an upload of the model": (For(0.1, events=(END,)), For(9 * HOURS, cores=0.01, network=1e6)),
    "a tracker's upload after done": (For(0.1, events=(DONE,)), For(4 * HOURS, network=2e4)),
    "a merge, an upload, and the next training": (
        For(1, events=(BEGIN, END)), For(70, cores=1.0), For(90, network=1e6), For(5, events=(BEGIN,)), For(70, cores=0.5),
    ),
    "a copy to a shared disk": (For(0.1, events=(END,)), For(2 * HOURS, cores=0.003, bytes=1e8)),
    "a farewell of 55 minutes": (For(0.1, events=(DONE,)), For(55)),
    "a word now and then": (For(20 * HOURS, prints=50),),
}  # fmt: skip
HANG_S = {"a lock of a day, in a job that says so": 25 * 3600.0}


def watched(phases, hang_s=None):
    """Let a script do its phases; return what it was named, in order, and after how many minutes it was ended or None."""
    clock = Clock()
    progress = AttemptProgress()
    progress.liveness = live = HangWatch(hang_s, clock)
    cpu_s = io = network = 0.0
    named, printed_s, begun_s = [], clock.now_s, clock.now_s
    for phase in phases:
        for one in phase.events:
            progress.learn(one)
        end_s, begin_s = clock.now_s + 60 * phase.minutes, clock.now_s
        while clock.now_s < end_s:
            turn_s = phase.minutes * 60 if phase.frozen else TURN_S
            clock.now_s += turn_s
            cpu_s += phase.cores * turn_s
            io += phase.bytes * turn_s / 60
            network += phase.network * turn_s / 60
            if phase.prints and clock.now_s >= printed_s + 60 * phase.prints:
                live.note_sign()
                printed_s = clock.now_s
            if live.is_look_due():
                child = int((clock.now_s - begin_s) / 60 / phase.children) if phase.children else 0
                processes = frozenset({(1, "1"), (2 + child, str(child))})
                use = Use(processes, round(cpu_s, 2), int(io), frozenset({(9, int(network))}))
                live.look(None if phase.hidden else use, is_card_used=phase.card)
            if live.doing and live.doing not in named[-1:]:
                named.append(live.doing)
            if live.is_hung():
                return named, (clock.now_s - begun_s) / 60
    return named, None


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_script_is_not_ended_however_long_it_is_silent(name):
    """With a byte, a hundredth of a core or a child now and then; or with nothing, for less than an hour."""
    _, ended = watched(HEALTHY[name], HANG_S.get(name))
    assert ended is None


def test_there_are_thirty():
    """As many as the issue asks for."""
    assert len(HEALTHY) >= 30


@pytest.mark.parametrize(
    ("phases", "named", "minutes"),
    [
        ((For(3 * HOURS),), [IDLE], 60),
        ((For(3 * HOURS, cores=0.009),), [IDLE], 60),
        ((For(20, cores=1.0), For(3 * HOURS)), [BUSY, IDLE], 80),
        ((For(0.1, events=(BEGIN, event("metric", 1, loss=1.0))), For(3 * HOURS)), [IDLE], 60),
        ((For(0.1, events=(BEGIN, END)), For(3 * HOURS)), [IDLE], 60),
        ((For(0.1, events=(DONE,)), For(3 * HOURS)), [IDLE], 60),
        ((For(5 * HOURS, cores=1.0),), [BUSY], None),
        ((For(5 * HOURS, hidden=True),), [UNSEEN], None),
    ],
    ids=["at once", "threads that wake up", "after work", "after a step", "after the end", "after done", "spins", "unseen"],
)  # fmt: skip
def test_silence_is_named_after_a_quarter_of_an_hour_and_ended_only_if_nothing_is_used(
    phases, named, minutes
):
    """Nothing used for an hour is a hang; what spins, or cannot be seen, is named."""
    found, ended = watched(phases)
    assert found == named
    assert (None if ended is None else round(ended)) == minutes


def test_the_answer_of_stacks_is_no_use():
    """Else each naming would put the end off by as much."""
    clock = Clock()
    live = HangWatch(None, clock)
    used = 0
    while not live.is_hung():
        clock.now_s += TURN_S
        if live.is_look_due():
            live.look(Use(frozenset({(1, "1")}), used / 10, used))
        if live.doing == IDLE and not used:
            live.await_answer()
            used, clock.now_s = 1000, clock.now_s + 1
    assert clock.now_s < 1000 + 3600 + 60
