"""The processes of this host with their variables, and those that carry a token; process_lineage.py judges them.

Variables can be read only on Linux.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import partial
from typing import Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from ..record import strict_json
from . import deadline, process, process_lineage
from .process_lineage import ProcessEntry

OF_RUN = "LAUNCH_TOKEN"
OF_ATTEMPT = "LAUNCH_ATTEMPT"
"""The path of the attempt's folder, in processes that the attempt itself has started."""
OF_EXEC = "LAUNCH_EXEC"
"""Set for a command of `launch exec`.

Its value ends with `.` and the pid of the agent that attends to the command.
"""
OF_KEEPER = "LAUNCH_KEEPER"
"""Set for a keeper and its agent, but for no process that a run starts."""
OF_ADOPTER = "LAUNCH_ADOPTER"
"""The pid and start time of the process that adopts the orphans of a run, as `pid.start`."""
_ENGINE = b"ENGINE_CONFIG%d"
_HANDED_IN = re.compile(rb'"(LAUNCH_[A-Z_]+)=((?:[^"\\]|\\.)*)"')
SILENCE_S = 0.5
MAX_LOOKS = 5


def read_table(variable: str = OF_RUN) -> List[ProcessEntry]:
    """Return the visible processes of this host with their variables.

    `variable` is the name of the one that holds the token.

    Reading the variables of a process that waits in the kernel (D) may block. A thread reads them, and if
    that takes too long, the process counts as one without variables.
    """
    processes = process.table()
    return read_entries(processes, [found.pid for found in processes if found.letter == "D"], variable)


def read_entries(
    processes: Sequence[process.Process], stuck: Collection[int], variable: str = OF_RUN
) -> List[ProcessEntry]:
    """Return these processes with their variables. Threads read those of the `stuck` pids."""
    questions = {found.pid: partial(_entry, found, variable) for found in processes if found.pid in stuck}
    in_time = deadline.at_once(questions, SILENCE_S) if questions else {}
    return [
        in_time.get(found.pid, _without_variables(found))
        if found.pid in questions
        else _entry(found, variable)
        for found in processes
    ]


def _without_variables(found: process.Process) -> ProcessEntry:
    return ProcessEntry(
        found.pid,
        found.parent,
        found.start,
        found.letter,
        uid=-1,
        name=found.name,
        is_exiting=found.is_exiting,
    )


def _entry(found: process.Process, variable: str) -> ProcessEntry:
    uid = -1
    variables: Dict[bytes, bytes] = {}
    if process.IS_LINUX:
        try:
            uid = os.stat("/proc/%d" % found.pid).st_uid
            with open("/proc/%d/environ" % found.pid, "rb") as file:
                pairs = [text.partition(b"=") for text in file.read().split(b"\0")]
                variables = {
                    name: value for name, _, value in reversed(pairs)
                }  # of several values of one name, the first counts
                variables = {**_handed_in(variables), **variables}
        except OSError:  # it belongs to another user or has ended: no proof that it is the run's
            pass
    return _without_variables(found)._replace(
        uid=uid,
        token=variables.get(variable.encode(), b"").decode("utf-8", "replace") or None,
        is_exec=OF_EXEC.encode() in variables,
        attended_by=_last_number(variables.get(OF_EXEC.encode(), b"")),
        is_keeper=OF_KEEPER.encode() in variables,
        adopter=_adopter(variables.get(OF_ADOPTER.encode(), b"")),
        server=process.server_of(found),
    )


def _handed_in(variables: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
    """Return the LAUNCH variables of an Apptainer container, if this process waits for that container.

    The waiting process has lost its own LAUNCH variables. Without these, it would look like another program
    to which the command was handed over.
    """
    engine, number = b"", 1
    while _ENGINE % number in variables:
        engine += variables[_ENGINE % number]
        number += 1
    found = {}
    for name, text in _HANDED_IN.findall(engine):
        with contextlib.suppress(ValueError):  # not Apptainer's, or bytes that JSON cannot hold
            found[name] = os.fsencode(strict_json.decode(b'"%s"' % text))
    return found


def _last_number(text: bytes) -> Optional[int]:
    number = text.rpartition(b".")[2]
    return int(number) if re.fullmatch(rb"[0-9]{1,9}", number) else None


def _adopter(text: bytes) -> Optional[Tuple[int, str]]:
    found = re.fullmatch(rb"([0-9]{1,9})\.([0-9]{1,20})", text)
    return (int(found[1]), found[2].decode()) if found else None


def words_of_adopter() -> str:
    """Return the value of OF_ADOPTER for children of this process; empty if it is unknown.

    This process must have no threads.
    """
    adopter = process.adopter()
    return as_adopter(adopter) if adopter is not None else ""


def as_adopter(adopter: process.Process) -> str:
    """Return the value of OF_ADOPTER for a process that adopts orphans."""
    return "%d.%s" % (adopter.pid, adopter.start)


def is_as_read(table: Sequence[ProcessEntry], pids: Collection[int]) -> bool:
    """Whether these processes and their ancestors are unchanged since the table was read.

    False if one of them has begun to end since then. An ending ancestor loses its variables first, and its
    children get another parent last: in between it looks like a program without the token.
    """
    processes = process_lineage.by_pid(table)
    line = {entry for pid in pids for entry in process_lineage.line_of(processes[pid], processes)}
    return all(_is_same(entry, process.find(entry.pid)) for entry in line)


def _is_same(entry: ProcessEntry, now: process.Process | None) -> bool:
    if now is None or not entry.start:  # hidden from this user, if it exists
        return now is None and not entry.start
    is_ending = now.letter == "Z" or now.is_exiting
    was_ending = entry.letter == "Z" or entry.is_exiting
    return (now.parent, now.start, is_ending) == (entry.parent, entry.start, was_ending)


def with_token(
    token: str, variable: str = OF_RUN, find_adopter: Optional[Callable[[], Optional[process.Process]]] = None
) -> List[process.Process]:
    """Return the processes with this token in their variables, by default the run's, except handed-over ones.

    Zombies and this process are left out. `find_adopter` finds the process that adopts their orphans, if
    their variables do not name it.
    """
    for _ in range(MAX_LOOKS):
        table = read_table(variable)
        adopter = find_adopter() if find_adopter is not None else None
        if adopter is not None:
            table = [entry._replace(adopter=(adopter.pid, adopter.start)) for entry in table]
        processes = process_lineage.by_pid(table)
        bearers = [entry for entry in table if entry.token == token and entry.letter != "Z"]
        given = {entry.pid for entry in bearers if process_lineage.receiver_of(entry, processes) is not None}
        if is_as_read(table, given):
            break
    return [
        process.Process(*entry[:4])
        for entry in bearers
        if entry.pid not in given and entry.pid != os.getpid()
    ]
