"""Lineage: whether a process that carries a run's token is still the run's, or was handed over to somebody else's program.

Variables are inherited. `sbatch` passes those of the training to the job, which slurmstepd starts; so do at, a spooler
and, if it was asked to, sshd. Such a process has the token, but descends from a program that has not. A process that the
training itself started descends from it, or, once that has ended, from whoever adopts orphans: init, the user's manager,
the one above the run's keeper that the keeper has found out, or a keeper of ours.

A server that puts itself in the background (tmux) is started by the training, and is meant to outlive it: the server
and all below it are handed over too.

The decision is made from a table that is a value; bearers.py reads it.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

INIT = 1


class ProcessEntry(NamedTuple):
    """A process of the table, with what its variables say.

    `token` is the run's; `is_exec`: it belongs to a command of `launch exec`, which `attended_by` has started;
    `is_keeper`: it is a keeper or an agent of ours. `name` is the kernel's. `server` is the program of a server in the background. `is_exiting`: it has no variables any more.
    `adopter` is the pid and the start of the process that adopts the orphans of its run.
    """

    pid: int
    parent: int
    start: str
    letter: str
    uid: int
    token: Optional[str] = None
    is_exec: bool = False
    is_keeper: bool = False
    name: str = ""
    server: Optional[str] = None
    is_exiting: bool = False
    attended_by: Optional[int] = None
    adopter: Optional[Tuple[int, str]] = None


def by_pid(table: Sequence[ProcessEntry]) -> Dict[int, ProcessEntry]:
    """Return the processes of a table by pid."""
    return {entry.pid: entry for entry in table}


def receiver_of(bearer: ProcessEntry, processes: Mapping[int, ProcessEntry]) -> Optional[ProcessEntry]:
    """Return the process that a bearer of a token was handed over to; None if it is still its run's.

    That is the server in the background that it is or descends from; or else the first ancestor without the token, unless one
    above that has it: then the run itself started that ancestor, for example as another user, or it has overwritten its variables.
    Keepers and agents are ours whatever is above them: their host's sshd, at first. So is the agent that attends to a command.
    """
    line = line_of(bearer, processes)
    is_kept = any(_is_ours(entry, bearer) for entry in line)
    highest = max((place for place, entry in enumerate(line) if entry.token == bearer.token), default=0)
    for place, entry in enumerate(line):
        is_outside = place > highest and not is_kept and entry.letter != "Z" and not entry.is_exiting
        if is_outside or entry.server is not None:
            return entry
    return None


def line_of(bearer: ProcessEntry, processes: Mapping[int, ProcessEntry]) -> List[ProcessEntry]:
    """Return a process and its ancestors, up to a keeper or an agent of ours, or else without whoever adopts orphans.

    An ancestor that is not in the table is another user's, hidden from us.
    """
    line: List[ProcessEntry] = []
    entry = bearer
    while entry.pid > INIT and entry not in line and not _adopts_orphans(entry, bearer):
        line.append(entry)
        if _is_ours(entry, bearer):
            break
        entry = processes.get(entry.parent) or ProcessEntry(entry.parent, 0, "", "", -1)
    return line


def _is_ours(entry: ProcessEntry, bearer: ProcessEntry) -> bool:
    return entry.is_keeper or entry.pid == bearer.attended_by


def _adopts_orphans(entry: ProcessEntry, bearer: ProcessEntry) -> bool:
    """Whether this adopts the orphans of a bearer's run, as the manager of a user does, `systemd --user`."""
    is_manager = entry.name == "systemd" and entry.parent == INIT and entry.uid == bearer.uid
    return is_manager or (entry is not bearer and (entry.pid, entry.start) == bearer.adopter)


def words_of(receiver: ProcessEntry) -> str:
    """Return a receiver for people, e.g. `slurmstepd (pid 4242)`."""
    return "%s (pid %d)" % (receiver.server or receiver.name or "another user's program", receiver.pid)
