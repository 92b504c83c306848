"""Decide whether a process with a run's token still belongs to the run, or was handed over to another program.

Variables are inherited. `sbatch` passes the training's variables to the job, which slurmstepd starts; so do
`at`, a spooler and, if configured, sshd. Such a process has the token, but descends from a program without
it. A process that the training itself started descends from the training. Once the training has ended, it
descends from the adopter of orphans: init, the user's manager, the subreaper above the run's keeper (which
the keeper records), or a keeper.

A server that puts itself in the background (tmux) is started by the training, and is meant to outlive it: the
server and its descendants count as handed over too.

The functions decide from a table, which token_processes.py reads.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

INIT = 1


class ProcessEntry(NamedTuple):
    """A process of the table with its variables.

    `token` is the run's. `is_exec`: it belongs to a command of `launch exec`, which `attended_by` has
    started. `is_keeper`: it is a keeper or an agent. `name` is the kernel's. `server` is the program of a
    background server. `is_exiting`: its variables are gone. `adopter` is the pid and the start time of the
    process that adopts the orphans of its run.
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
    """Return the process that a bearer of a token was handed over to; None if it still belongs to its run.

    That is the first process, from the bearer upwards, that is a background server, or that lacks the token
    like all its ancestors. If a process lacks the token but an ancestor of it has the token, the run itself
    started that process, for example as another user, or the process has overwritten its variables. Keepers,
    agents, and the agent that attends to a command belong to the launcher, whatever their ancestors are (at
    first the host's sshd).
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
    """Return a process and its ancestors, up to a keeper or agent, or below the adopter of orphans.

    An ancestor that is missing from the table belongs to another user and is hidden.
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
    """Whether this process adopts the orphans of a bearer's run, like a user's manager, `systemd --user`."""
    is_manager = entry.name == "systemd" and entry.parent == INIT and entry.uid == bearer.uid
    return is_manager or (entry is not bearer and (entry.pid, entry.start) == bearer.adopter)


def words_of(receiver: ProcessEntry) -> str:
    """Return a receiver's name for messages, e.g. `slurmstepd (pid 4242)`."""
    return "%s (pid %d)" % (receiver.server or receiver.name or "another user's program", receiver.pid)
