"""Whose a process is, by proof: ours and needed, ours and left over, or a stranger's.

The proof is the token of a run below our root, in the environment of a process of our own user, where this very host and boot made
the run's record. Names, command lines, parents and ages prove nothing. Whose it is, is decided here from a table that
is a value; whoever signals looks again by start time, in process.send. Linux: elsewhere no environment is seen, and
every process is a stranger.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Union

from ..record.rundir import RUN_ID, TERMINAL, Run, paths_in, read_json, read_text
from ..system import deadline, process
from . import run_state

LIVE = "ours-live"
LEFTOVER = "ours-leftover"
STRANGER = "stranger"
ENDED = (*TERMINAL, "interrupted")
"""The states of a run that needs none of its processes."""
SILENCE_S = 0.5
_TOKEN = b"LAUNCH_TOKEN="
_EXEC = b"LAUNCH_EXEC="


class Owned(NamedTuple):
    """What a process is to us: `ours-live`, `ours-leftover` or `stranger`; of which run, where it is ours."""

    kind: str
    run: Optional[str]


class Seen(NamedTuple):
    """A process as the table shows it; `token` and `is_exec` (of a `launch exec`) are told by its environment."""

    pid: int
    parent: int
    start: str
    letter: str
    uid: int
    token: Optional[str] = None
    is_exec: bool = False


class Claim(NamedTuple):
    """A run of this host and boot, and whether it needs its processes."""

    run: str
    is_needed: bool


def judge(root: str, pids: Iterable[int]) -> Dict[int, Owned]:
    """Say of each pid whose it is; one that is not there is a stranger's.

    Only their environments are read, and those of zombies' parents: that of a process which waits for a driver may
    not be told before the driver answers, so whoever asks for such a one has a thread for it.
    """
    asked, everyone = set(pids), process.table()
    asked |= {one.parent for one in everyone if one.letter == "Z" and one.pid in asked}
    table = [_seen(one) for one in everyone if one.pid in asked]
    found = judge_table(table, claims(root, table), os.geteuid(), own_line(everyone, os.getpid()))
    return {pid: found.get(pid, Owned(STRANGER, None)) for pid in pids}


def judge_table(
    table: Sequence[Seen], claimed: Mapping[str, Claim], uid: int, spared: Collection[int] = ()
) -> Dict[int, Owned]:
    """Say of each process of a table whose it is, for this user; `claimed` are our runs by token.

    A zombie has no environment: it is its parent's. A command of `launch exec`, which ends with its own client, and
    whoever is `spared`, are no leftovers.
    """
    living = {one.pid: _judge_living(one, claimed, uid, spared) for one in table if one.letter != "Z"}
    found = {one.pid: living.get(one.parent, Owned(STRANGER, None)) for one in table if one.letter == "Z"}
    return {**living, **found}


def _judge_living(one: Seen, claimed: Mapping[str, Claim], uid: int, spared: Collection[int]) -> Owned:
    claim = claimed.get(one.token) if one.token and one.uid == uid else None
    if claim is None:
        return Owned(STRANGER, None)
    is_live = claim.is_needed or one.is_exec or one.pid in spared or one.pid <= 1
    return Owned(LIVE if is_live else LEFTOVER, claim.run)


def own_line(table: Sequence[Union[Seen, process.Process]], pid: int) -> List[int]:
    """Return a process and its ancestors."""
    parents = {one.pid: one.parent for one in table}
    line = [pid]
    while parents.get(line[-1], 0) not in (0, *line):
        line.append(parents[line[-1]])
    return line


def leftovers(root: str, runs: Optional[Collection[str]] = None) -> Dict[str, List[process.Process]]:
    """Return what is left of runs that need it no more, of all below a root or of some of them; zombies left out."""
    table = look()
    owned = judge_table(table, claims(root, table), os.geteuid(), own_line(table, os.getpid()))
    found: Dict[str, List[process.Process]] = {}
    for one in table:
        kind, run = owned[one.pid]
        if kind == LEFTOVER and run is not None and one.letter != "Z" and (runs is None or run in runs):
            found.setdefault(run, []).append(process.Process(one.pid, one.parent, one.start, one.letter))
    return found


def look() -> List[Seen]:
    """Return the processes of this host that we may see, each with what its environment tells.

    What waits in the kernel (D) may not tell it before that answers: such a one is asked in a thread, and seen without
    its environment, as a stranger, where it is silent for too long.
    """
    everyone = process.table()
    stuck = {one.pid: partial(_seen, one) for one in everyone if one.letter == "D"}
    told = deadline.at_once(stuck, SILENCE_S) if stuck else {}
    return [
        told.get(one.pid, _without_environment(one)) if one.pid in stuck else _seen(one) for one in everyone
    ]


def _without_environment(one: process.Process) -> Seen:
    return Seen(one.pid, one.parent, one.start, one.letter, -1)


def _seen(one: process.Process) -> Seen:
    uid, variables = -1, []
    if process.IS_LINUX:
        try:
            uid = os.stat("/proc/%d" % one.pid).st_uid
            with open("/proc/%d/environ" % one.pid, "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:  # another user's, or gone meanwhile: not provably ours
            pass
    token = next((text[len(_TOKEN) :] for text in variables if text.startswith(_TOKEN)), b"")
    is_exec = any(text.startswith(_EXEC) for text in variables)
    return Seen(
        one.pid, one.parent, one.start, one.letter, uid, token.decode("utf-8", "replace") or None, is_exec
    )


def claims(root: str, table: Sequence[Seen]) -> Dict[str, Claim]:
    """Return the runs below a root whose tokens a table shows, by token; those of another host or boot are not judged."""
    seen = {one.token for one in table if one.token}
    found: Dict[str, Claim] = {}
    for path in paths_in(os.path.join(root, "runs")) if seen else ():
        run = Run(path)
        if not RUN_ID.fullmatch(run.id):
            continue
        token = token_of(run)
        try:
            if token is not None and token in seen and is_of_this_boot(run):
                found[token] = Claim(run.id, run_state.state_of(run)["state"] not in ENDED)
        except OSError:  # it was removed just now, or is not ours to read
            continue
    return found


def token_of(run: Run) -> Optional[str]:
    """Return a run's token, None where we may not read it or there is none."""
    try:
        return read_text(run.token) or None
    except OSError:  # of another user, who shares the root
        return None


def is_of_this_boot(run: Run) -> bool:
    """Whether the record of a run was made on this host, and its last word on a boot since this one."""
    if run.place_id() != process.host_id():
        return False
    for number in reversed(run.numbers()):
        boot = read_json(run.folder(number).attempt).get("boot_id")
        if boot is not None:  # a folder that was just made tells none yet
            return bool(boot == process.boot_id())
    return False
