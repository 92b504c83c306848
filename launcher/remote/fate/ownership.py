"""Ownership: whether a process belongs to a run of ours that needs it, to one that does not, or to somebody else.

The proof is the token of a run below our root in the variables of a process of our own user, if the run was recorded on
this host since this boot. Names, command lines, parents and ages prove nothing. For example, a training whose agent and
keeper were killed still carries the token of its run; the run is `interrupted`, so the process is `ours-leftover` and a
sweep ends it.

The decision is made from a table that is a value; `process.send` checks the start time again before a signal. On other
systems than Linux no variables can be read, and every process belongs to a stranger.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Union

from ..record.files import paths_in, read_text
from ..record.rundir import RUN_ID, TERMINAL, Run
from ..system import deadline, process
from . import run_state

LIVE = "ours-live"
LEFTOVER = "ours-leftover"
STRANGER = "stranger"
ENDED = (*TERMINAL, "interrupted")
"""The states in which a run needs none of its processes."""
SILENCE_S = 0.5
_TOKEN = b"LAUNCH_TOKEN="
_EXEC = b"LAUNCH_EXEC="


class Owner(NamedTuple):
    """Who owns a process: `ours-live`, `ours-leftover` or `stranger`; the run if it is ours."""

    kind: str
    run: Optional[str]


class ProcessEntry(NamedTuple):
    """A process of the table; `token`, and `is_exec` for one of `launch exec`, come from its variables."""

    pid: int
    parent: int
    start: str
    letter: str
    uid: int
    token: Optional[str] = None
    is_exec: bool = False


class Claim(NamedTuple):
    """A run that was recorded on this host since this boot, and whether it needs its processes."""

    run: str
    is_needed: bool


def owners_of(root: str, pids: Iterable[int]) -> Dict[int, Owner]:
    """Return the owner of each pid; a pid that is not in the table belongs to a stranger.

    Reads the variables of these processes only, and of zombies' parents. Those of a process that waits for a driver may
    block until the driver answers: ask for such a process in a thread.
    """
    selected, processes = set(pids), process.table()
    selected |= {entry.parent for entry in processes if entry.letter == "Z" and entry.pid in selected}
    table = [_entry(found) for found in processes if found.pid in selected]
    owners = judge_table(table, claims(root, table), os.geteuid(), ancestry(processes, os.getpid()))
    return {pid: owners.get(pid, Owner(STRANGER, None)) for pid in pids}


def judge_table(
    table: Sequence[ProcessEntry],
    claims_by_token: Mapping[str, Claim],
    uid: int,
    spared: Collection[int] = (),
) -> Dict[int, Owner]:
    """Return the owner of each process of a table, for this user.

    A zombie has no variables: it belongs to its parent. A command of `launch exec`, which ends with its own client, and
    the `spared` pids are never leftovers.
    """
    living = {
        entry.pid: _judge_living(entry, claims_by_token, uid, spared)
        for entry in table
        if entry.letter != "Z"
    }
    zombies = {
        entry.pid: living.get(entry.parent, Owner(STRANGER, None)) for entry in table if entry.letter == "Z"
    }
    return {**living, **zombies}


def _judge_living(
    entry: ProcessEntry, claims_by_token: Mapping[str, Claim], uid: int, spared: Collection[int]
) -> Owner:
    claim = claims_by_token.get(entry.token) if entry.token and entry.uid == uid else None
    if claim is None:
        return Owner(STRANGER, None)
    is_live = claim.is_needed or entry.is_exec or entry.pid in spared or entry.pid <= 1
    return Owner(LIVE if is_live else LEFTOVER, claim.run)


def ancestry(table: Sequence[Union[ProcessEntry, process.Process]], pid: int) -> List[int]:
    """Return a process and its ancestors."""
    parents = {entry.pid: entry.parent for entry in table}
    line = [pid]
    while parents.get(line[-1], 0) not in (0, *line):
        line.append(parents[line[-1]])
    return line


def leftovers(root: str, runs: Optional[Collection[str]] = None) -> Dict[str, List[process.Process]]:
    """Return the processes that are left of runs which no longer need them, by run, without zombies.

    All runs below a root are considered, or only `runs`.
    """
    table = read_table()
    owners = judge_table(table, claims(root, table), os.geteuid(), ancestry(table, os.getpid()))
    left: Dict[str, List[process.Process]] = {}
    for entry in table:
        kind, run = owners[entry.pid]
        if kind == LEFTOVER and run is not None and entry.letter != "Z" and (runs is None or run in runs):
            left.setdefault(run, []).append(process.Process(*entry[:4]))
    return left


def read_table() -> List[ProcessEntry]:
    """Return the processes of this host that we may see, with what their variables say.

    Reading the variables of a process that waits in the kernel (D) may block. It is read in a thread, and counts as a
    stranger's, without variables, if that takes too long.
    """
    processes = process.table()
    stuck = {found.pid: partial(_entry, found) for found in processes if found.letter == "D"}
    in_time = deadline.at_once(stuck, SILENCE_S) if stuck else {}
    return [
        in_time.get(found.pid, _without_variables(found)) if found.pid in stuck else _entry(found)
        for found in processes
    ]


def _without_variables(found: process.Process) -> ProcessEntry:
    return ProcessEntry(found.pid, found.parent, found.start, found.letter, uid=-1)


def _entry(found: process.Process) -> ProcessEntry:
    uid, variables = -1, []
    if process.IS_LINUX:
        try:
            uid = os.stat("/proc/%d" % found.pid).st_uid
            with open("/proc/%d/environ" % found.pid, "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:  # another user's, or it has ended: nothing proves that it is ours
            pass
    token = next((text[len(_TOKEN) :] for text in variables if text.startswith(_TOKEN)), b"")
    is_exec = any(text.startswith(_EXEC) for text in variables)
    return _without_variables(found)._replace(
        uid=uid, token=token.decode("utf-8", "replace") or None, is_exec=is_exec
    )


def claims(root: str, table: Sequence[ProcessEntry]) -> Dict[str, Claim]:
    """Return the runs below a root whose tokens are in a table, by token. Those of another host or boot are left out."""
    tokens = {entry.token for entry in table if entry.token}
    found: Dict[str, Claim] = {}
    for path in paths_in(os.path.join(root, "runs")) if tokens else ():
        run = Run(path)
        if not RUN_ID.fullmatch(run.id):
            continue
        token = token_of(run)
        try:
            if token is not None and token in tokens and is_of_this_boot(run):
                found[token] = Claim(run.id, run_state.state_of(run)["state"] not in ENDED)
        except OSError:  # it was just removed, or we may not read it
            continue
    return found


def token_of(run: Run) -> Optional[str]:
    """Return a run's token, None if it has none or we may not read it."""
    try:
        return read_text(run.token) or None
    except OSError:  # of another user, who shares the root
        return None


def is_of_this_boot(run: Run) -> bool:
    """Whether a run was recorded on this host, and last written to since this boot."""
    if run.place_id() != process.host_id():
        return False
    for number in reversed(run.numbers()):
        boot = run.folder(number).read_attempt().get("boot_id")
        if boot is not None:  # a folder that was just made has no boot id yet
            return bool(boot == process.boot_id())
    return False
