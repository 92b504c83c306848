"""Ownership: whether a process belongs to a run that needs it, to a run that does not, or to a stranger.

The proof is the token of a run below our root in the variables of a process of our own user. The run must
have been recorded on this host since this boot, and the process must not have been handed over
(process_lineage.py). Names, command lines and ages prove nothing. For example, a training whose agent and
keeper were killed still carries the token of its run. The run is `interrupted`, so the process is
`ours-leftover` and a sweep ends it. A job that the training submitted with `sbatch` carries the token too,
but belongs to slurmstepd: it is `handed-over`, and a sweep only names it.

The decision is a pure function of a process table; `process.send` checks the start time again before it
signals. Outside Linux no variables can be read, and every process counts as a stranger's.
"""

from __future__ import annotations

import functools
import os
from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..record.files import paths_in, read_text
from ..record.rundir import RUN_ID, TERMINAL, Run
from ..system import process, process_lineage, token_processes
from ..system.process_lineage import ProcessEntry
from . import run_state

LIVE = "ours-live"
LEFTOVER = "ours-leftover"
HANDED_OVER = "handed-over"
STRANGER = "stranger"
ENDED = (*TERMINAL, "interrupted")
"""The states in which a run needs none of its processes."""


class Owner(NamedTuple):
    """The owner of a process: `ours-live`, `ours-leftover`, `handed-over` or `stranger`.

    `run` is the run whose token it carries. `receiver` is the program it was handed over to, e.g. `slurmstepd
    (pid 4242)`.
    """

    kind: str
    run: Optional[str]
    receiver: Optional[str] = None


class Claim(NamedTuple):
    """A run that was recorded on this host since this boot, and whether it needs its processes.

    Processes with `in_container` end with their container. They never count as handed over, although the
    engine is their ancestor as seen from here.
    """

    run: str
    is_needed: bool
    in_container: bool = False


class LeftoverProcesses(NamedTuple):
    """The remaining processes of runs that no longer need them, by run, without zombies.

    `handed_over` are the processes that the runs have handed over, each with its receiver.
    """

    ours: Dict[str, List[process.Process]]
    handed_over: Dict[str, List[Tuple[process.Process, str]]]


def owners_of(root: str, pids: Iterable[int]) -> Dict[int, Owner]:
    """Return the owner of each pid; a pid that is not in the table belongs to a stranger.

    Reads the variables of these processes, of their ancestors, and of zombies' parents only. If such a
    process waits for a driver, the read may block until the driver answers: then call this in a thread.
    """
    selected = set(pids)
    for _ in range(token_processes.MAX_LOOKS):
        processes = process.table()
        lines = {one for pid in selected for one in ancestry(processes, pid)}
        chosen = [found for found in processes if found.pid in lines]
        stuck = [found.pid for found in chosen if found.letter == "D" and found.pid not in selected]
        table = token_processes.read_entries(chosen, stuck)
        owners = judge_table(table, claims(root, table), os.geteuid(), ancestry(processes, os.getpid()))
        if token_processes.is_as_read(table, _handed_over(owners)):
            break
    return {pid: owners.get(pid, Owner(STRANGER, None)) for pid in selected}


def _handed_over(owners: Mapping[int, Owner]) -> List[int]:
    return [pid for pid, owner in owners.items() if owner.kind == HANDED_OVER]


def judge_table(
    table: Sequence[ProcessEntry],
    claims_by_token: Mapping[str, Claim],
    uid: int,
    spared: Collection[int] = (),
) -> Dict[int, Owner]:
    """Return the owner of each process of a table, for this user.

    A zombie has no variables: it belongs to its parent. A command of `launch exec` ends with its own client,
    so it is never a leftover; nor are the `spared` pids.
    """
    processes = process_lineage.by_pid(table)
    living = {
        entry.pid: _judge_living(entry, claims_by_token, uid, spared, processes)
        for entry in table
        if entry.letter != "Z"
    }
    zombies = {
        entry.pid: living.get(entry.parent, Owner(STRANGER, None)) for entry in table if entry.letter == "Z"
    }
    return {**living, **zombies}


def _judge_living(
    entry: ProcessEntry,
    claims_by_token: Mapping[str, Claim],
    uid: int,
    spared: Collection[int],
    processes: Mapping[int, ProcessEntry],
) -> Owner:
    claim = claims_by_token.get(entry.token) if entry.token and entry.uid == uid else None
    if claim is None:
        return Owner(STRANGER, None)
    if entry.pid in spared or entry.pid <= process_lineage.INIT:
        return Owner(LIVE, claim.run)
    receiver = None if claim.in_container else process_lineage.receiver_of(entry, processes)
    if receiver is not None:
        return Owner(HANDED_OVER, claim.run, process_lineage.words_of(receiver))
    return Owner(LIVE if claim.is_needed or entry.is_exec else LEFTOVER, claim.run)


def ancestry(table: Sequence[Union[ProcessEntry, process.Process]], pid: int) -> List[int]:
    """Return a process and its ancestors."""
    parents = {entry.pid: entry.parent for entry in table}
    line = [pid]
    while parents.get(line[-1], 0) not in (0, *line):
        line.append(parents[line[-1]])
    return line


def leftovers(root: str, runs: Optional[Collection[str]] = None) -> LeftoverProcesses:
    """Return the leftover processes of ended runs: of all runs below a root, or only of `runs`."""
    for _ in range(token_processes.MAX_LOOKS):
        table = token_processes.read_table()
        claimed = claims(root, table)
        owners = judge_table(table, claimed, os.geteuid(), ancestry(table, os.getpid()))
        if token_processes.is_as_read(table, _handed_over(owners)):
            break
    over = {
        claim.run for claim in claimed.values() if not claim.is_needed and (runs is None or claim.run in runs)
    }
    left = LeftoverProcesses({}, {})
    for entry in table:
        kind, run, receiver = owners[entry.pid]
        if run is None or entry.letter == "Z" or run not in over:
            continue
        found = process.Process(*entry[:4])
        if kind == LEFTOVER:
            left.ours.setdefault(run, []).append(found)
        elif receiver is not None:
            left.handed_over.setdefault(run, []).append((found, receiver))
    return left


def claims(root: str, table: Sequence[ProcessEntry]) -> Dict[str, Claim]:
    """Return the runs below a root whose tokens are in a table, by token.

    Those of another host or boot are left out.
    """
    found: Dict[str, Claim] = {}
    for token in {entry.token for entry in table if entry.token}:
        run = _run_of(root, token)
        try:
            if run is not None and token_of(run) == token and is_of_this_boot(run):
                is_needed = run_state.state_of(run)["state"] not in ENDED
                found[token] = Claim(run.id, is_needed, not run_state.probe_of(run).shows_processes)
        except OSError:  # it was just removed, or we may not read it
            continue
    return found


def new_token(run: Run) -> str:
    """Return a new token for a run.

    It starts with the run's id, so that a process leads to its run without a search.
    """
    return "%s:%s" % (run.id, os.urandom(16).hex())


def _run_of(root: str, token: str) -> Optional[Run]:
    """Return the run that a token names.

    Tokens made before 2026-11-23 name no run, so all runs are searched.
    """
    name = token.partition(":")[0]
    runs = os.path.join(root, "runs")
    if not RUN_ID.fullmatch(name):
        try:
            name = _older_tokens(runs, os.stat(runs).st_mtime_ns).get(token, "")
        except OSError:  # no run was made yet
            name = ""
    return Run(os.path.join(runs, name)) if name else None


@functools.lru_cache(maxsize=1)
def _older_tokens(folder: str, _changed_ns: int) -> Dict[str, str]:
    """Return the runs whose tokens do not name them, by token.

    `_changed_ns` is the time a run was last added or removed; it is the key of the cache.
    """
    paths = [path for path in paths_in(folder) if RUN_ID.fullmatch(os.path.basename(path))]
    runs = [Run(path) for path in paths if not _has_new_token(path)]
    tokens = ((token_of(run) or "", run.id) for run in runs)
    return {token: run_id for token, run_id in tokens if token and not token.startswith(run_id)}


def _has_new_token(path: str) -> bool:
    """Whether the token of the run in a folder has the length of one that names the run."""
    try:
        return os.lstat(path + "/control/token").st_size == len(os.path.basename(path)) + 33
    except OSError:
        return False


def token_of(run: Run) -> Optional[str]:
    """Return a run's token; None if it has none or we may not read it."""
    try:
        return read_text(run.token) or None
    except OSError:  # of another user, who shares the root
        return None


def is_of_this_boot(run: Run) -> bool:
    """Whether a run was recorded on this host, and last written to since this boot."""
    if run.place_id() != process.host_id():
        return False
    for folder in run.newest():
        boot = folder.read_attempt().get("boot_id")
        if boot is not None:  # a folder that was just made has no boot id yet
            return bool(boot == process.boot_id())
    return False
