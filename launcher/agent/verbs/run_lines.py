"""The runs of this host as lines for a client: all or some of them, newest first.

Each line has a bounded length.
"""

from __future__ import annotations

import os
from typing import Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..liveness import run_state
from ..record import strict_json
from ..record.rundir import RUN_ID, TERMINAL, UNREADABLE, Run
from .summary import line_of
from .summary_cache import CachedSummary, SummaryCache

GROUP = 50
MAX_BYTES = 60_000
"""The longest line: a job may write evidence of any size into its record."""
_TOO_LONG = {UNREADABLE: "its record is too long to list"}


class RunFilter(NamedTuple):
    """Which runs to list.

    `like` is the start of an id or of its last part, or the run's name. `states` are the accepted states, and
    `most` is the largest number of runs, newest first.
    """

    like: Optional[str] = None
    states: Optional[List[str]] = None
    most: Optional[int] = None


def lines_of(root: str, run_ids: List[str]) -> Iterator[str]:
    """Yield a line about each of these runs that exists.

    The cost does not depend on the number of other runs.
    """
    named = dict.fromkeys(name for name in run_ids if RUN_ID.fullmatch(name))
    runs = [Run(os.path.join(root, "runs", name)) for name in named]
    present = [run for run in runs if os.path.isdir(run.path)]
    states = run_state.states_of(present)
    for run in present:
        if os.path.isdir(run.path):  # otherwise it was just removed
            yield text_of(line_of(run, states[run.id]))


def chosen_lines(root: str, choice: RunFilter) -> Iterator[List[str]]:
    """Yield the lines about the chosen runs in groups.

    Some groups are empty, so that the client sees progress.
    """
    names = _names(os.path.join(root, "runs"), choice)
    cache, left = SummaryCache(root), len(names) if choice.most is None else choice.most
    for start in range(0, len(names), GROUP):
        if left <= 0:
            return
        found = _group(root, names[start : start + GROUP], cache)
        lines = [text for state, text in found if choice.states is None or state in choice.states][:left]
        left -= len(lines)
        cache.save()
        yield lines


def text_of(line: Mapping[str, object]) -> str:
    """Return a line as JSON of bounded length. A line that is too long loses its evidence."""
    text = strict_json.encode({key: value for key, value in line.items() if value is not None})
    if len(text) <= MAX_BYTES:
        return text
    kept = {key: line.get(key) for key in ("run", "state", "engine", "runtime")}
    text = strict_json.encode(dict(kept, evidence=_TOO_LONG))
    return (
        text
        if len(text) <= MAX_BYTES
        else strict_json.encode({"run": line["run"], "state": UNREADABLE, "evidence": _TOO_LONG})
    )


def _names(folder: str, choice: RunFilter) -> List[str]:
    """Return the ids of the runs whose names match, the newest first: by id, or with `most` by folder time."""
    try:
        names = [name for name in os.listdir(folder) if RUN_ID.fullmatch(name)]
    except FileNotFoundError:
        return []
    like = choice.like
    if like is not None:
        names = [name for name in names if _is_like(name, like)]
    if choice.most is None:
        return sorted(names, reverse=True)
    return sorted(names, key=lambda name: (_made(os.path.join(folder, name)), name), reverse=True)


def _is_like(run: str, like: str) -> bool:
    front, _, last = run.rpartition("-")
    return run.startswith(like) or last.startswith(like) or front.partition("-")[2] == like


def _made(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:  # it was just removed
        return 0.0


def _group(root: str, names: List[str], cache: SummaryCache) -> List[Tuple[str, str]]:
    """Return the state of each of these runs, and a line about it."""
    kept = {name: cache.line_of(name) for name in names}
    runs = {name: Run(os.path.join(root, "runs", name)) for name in names if kept[name] is None}
    marks = {name: cache.marks_of(run) for name, run in runs.items()}  # before the files are read
    states = run_state.states_of(list(runs.values()))
    found = []
    for name in names:
        known = kept[name]
        if known is None:
            if not os.path.isdir(runs[name].path):
                continue
            line = line_of(runs[name], states[name])
            known = CachedSummary(line["state"], marks[name] or "", text_of(line))
            is_recorded = known.state in TERMINAL and not run_state.is_unwritten(states[name])
            if is_recorded and known.marks:
                cache.keep(name, known)
        found.append((known.state, known.text))
    return found
