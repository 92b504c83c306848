"""The part `taken`: who holds the card, a live run's lease, and what a killed run leaves on it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpu import card
from gpu.parts import NOT_ON_A_CPU, Row
from gpu.station import Station
from gpu.trouble import gb, hungry, planned_micro_batch, run_folder, until_ended
from testbed.client import is_gone, processes_of, until

GIB = 2**30
HELD = {True: GIB // 4, False: 2 * GIB}
"""What a run holds, by whether it is a rehearsal, in bytes."""
ROOM = 4 * GIB
"""What a process of no run leaves free on the card; a training beside it needs twice that."""
SLACK = GIB // 4
"""The difference of two readings of a card that is free both times, at most."""
IN = ("--", "python", "-c", "print('in')")


def taken(station: Station) -> Iterator[Row]:
    """Hold the card in three ways, one after the other."""
    yield from _strangers(station)
    yield from _leased(station)
    yield from _leftovers(station)


# a process of no run


def _strangers(station: Station) -> Iterator[Row]:
    if station.card is None:
        with _holding(station, HELD[True]):
            station.client.ok("probe", "--json")
        yield from ({"what": name, "found": NOT_ON_A_CPU} for name in (SEEN, BESIDE))
        return
    with _holding(station, card.free_bytes() - ROOM) as pid:
        yield _seen(station, pid)
        yield _refused(station, pid) if station.card.is_exclusive else _beside(station, pid)


SEEN = "a process of no run fills the card: `launch probe`"
BESIDE = "… and a training that does not fit beside it"
REFUSED = "… which takes one process at a time: another launch"


@contextlib.contextmanager
def _holding(station: Station, size: int) -> Iterator[int]:
    """Start a process of no run that holds memory; it is ended afterwards."""
    words = [sys.executable, "holds.py", str(size), str(station.folder / "never")]
    with subprocess.Popen(words, cwd=station.client.project, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("holds"), "it could not hold the card"
            yield process.pid
        finally:
            process.kill()


def _seen(station: Station, pid: int) -> Row:
    """Compare who holds the card by `launch probe` and by nvidia-smi."""
    probe = json.loads(station.client.ok("probe", "--json"))
    is_named = pid in [holder["pid"] for gpu in probe["gpus"] for holder in gpu["holders"]]
    is_seen = pid in card.holders()
    return {
        "what": SEEN,
        "found": f"{'names' if is_named else 'does not name'} its pid",
        "witness": f"nvidia-smi {'does' if is_seen else 'does not, as in a container'}; {gb(card.used_bytes())} in use",
        "ok": is_named == is_seen,
    }


def _beside(station: Station, pid: int) -> Row:
    """Launch a training that does not fit: only where torch does not see the other process is a smaller micro-batch the answer."""
    micro = planned_micro_batch(station)
    run = hungry(station, 2 * ROOM // micro, room=micro)
    state, log = station.client.summary(run), station.client.ok("logs", run)
    named = sorted(set(re.findall(r"Process (\d+) has [\d.]+ [GM]iB memory in use", log)))
    is_answered = state["state"] == "failed" and state["attempt"] == 1
    is_mended = state["state"] == "succeeded" and state["attempt"] != 1
    return {
        "what": BESIDE,
        "found": f"{state['state']}: {state['reason']}, attempt {state['attempt']}",
        "witness": f"torch names {', '.join(named) or 'no process'}; that of no run {_lives(pid)}",
        "ok": (is_answered if named else is_mended) and not is_gone(pid),
    }


def _refused(station: Station, pid: int) -> Row:
    """Launch onto an exclusive card that another process holds."""
    done = station.client.run(*station.on_card, *IN)
    is_named = f"pid {pid}" in done.stderr
    is_seen = pid in card.holders()
    return {
        "what": REFUSED,
        "found": f"exit {done.returncode}, {'names' if is_named else 'does not name'} its pid",
        "witness": f"nvidia-smi {'does' if is_seen else 'does not, as in a container'}; that of no run {_lives(pid)}",
        "ok": (not is_seen or (done.returncode == 3 and is_named)) and not is_gone(pid),
    }


def _lives(pid: int) -> str:
    return "has ended" if is_gone(pid) else "lives"


# a run that lives


def _leased(station: Station) -> Iterator[Row]:
    enough, run = _held_by_a_run(station, "leased")
    done = station.client.run(*station.on_card, *IN)
    is_named = run in done.stderr
    lives = bool(processes_of(run_folder(station, run)))
    exit_and_name = f"exit {done.returncode}, {'names' if is_named else 'does not name'} the run"
    yield {
        "what": "a live run has the card: another launch",
        "found": NOT_ON_A_CPU if station.is_rehearsed else exit_and_name,
        "witness": f"the run {'lives' if lives else 'has ended'}",
        "ok": None if station.is_rehearsed else done.returncode == 3 and is_named and lives,
    }
    enough.touch()
    until_ended(station, run)


def _held_by_a_run(station: Station, name: str) -> tuple[Path, str]:
    """Launch a run that holds memory until a file is there; return the file and the run once it holds it."""
    enough = station.folder / f"enough-{name}"
    command = ("python", "holds.py", str(HELD[station.is_rehearsed]), str(enough))
    run = station.client.detached(*station.on_card, "--", *command)
    until(lambda: "holds" in station.client.ok("logs", run), "its memory", 120, every=1.0)
    return enough, run


# a run that was killed


class Killed(NamedTuple):
    """What a run was, when its agent and keeper were killed."""

    trained: list[int]
    agent: int
    keeper: int


def _leftovers(station: Station) -> Iterator[Row]:
    before = _used(station)
    _, run = _held_by_a_run(station, "left")
    killed = _processes(run_folder(station, run))
    for pid in (killed.keeper, killed.agent):
        os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(killed.agent) and is_gone(killed.keeper), "the end of agent and keeper")
    left = [pid for pid in killed.trained if not is_gone(pid)]
    in_use = f"{gb(_used(station))} of the card in use, {gb(before)} before"
    yield {
        "what": "agent and keeper killed by SIGKILL: what is left",
        "found": f"{len(left)} of {len(killed.trained)} processes live",
        "witness": NOT_ON_A_CPU if station.is_rehearsed else in_use,
        "ok": bool(left),
    }
    stages = station.client.seen(*station.on_card, *IN)
    after = _used(station)
    living = [pid for pid in left if not is_gone(pid)]
    sweep = next((line for line in stages.splitlines() if " sweep " in line), "no sweep")
    sweep = sweep.replace(sys.executable, Path(sys.executable).name)  # its folder is of no interest
    in_use = NOT_ON_A_CPU if station.is_rehearsed else f"{gb(after)} in use"
    yield {
        "what": "… and the next launch",
        "found": re.sub(r"\s+", " ", sweep.strip(" ✓")),
        "witness": f"{len(living)} of them live; {in_use}",
        "ok": not living and f"ended {len(left)} leftover" in sweep and after - before < SLACK,
    }


def _used(station: Station) -> int:
    """Return the bytes of the card in use, 0 in a rehearsal."""
    return 0 if station.is_rehearsed else card.used_bytes()


def _processes(folder: Path) -> Killed:
    """Return the processes of a run."""
    record = max(folder.glob("record/[0-9]*/attempt.json"))
    agent = int(json.loads(record.read_text())["agent"]["pid"])
    keeper = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    return Killed([pid for pid in processes_of(folder) if pid not in (agent, keeper)], agent, keeper)
