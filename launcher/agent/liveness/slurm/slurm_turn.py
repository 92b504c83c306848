"""How many jobs wait before ours in the queue of their partitions, by one question for all of a cluster's jobs.

It is asked only while a run waits for its turn, and kept for long: a cluster may have very many jobs. What it says is worth no
delay; without an answer nothing is said, nor where each user sees their own jobs alone.
"""

from __future__ import annotations

import bisect
import functools
import re
from typing import Dict, FrozenSet, List, NamedTuple, Sequence, Tuple

from .slurm_jobs import TURNS, WAITS, SlurmJob, is_in_line
from .slurm_programs import CONFIG, CachedQuery, SlurmSilentError

LINE = ("squeue", "--all", "--noheader", "--array", "--states=PENDING", "--format=%i|%P|%Q|%r")
"""Asks for the jobs of all users that wait; each item of an array is a job."""
KEPT_S, WAIT_S, OLD_S = 30.0, 1.0, 60.0
CONFIG_KEPT_S = 3600.0
_PRIVATE = re.compile(r"^PrivateData\s*=\s*(\S.*?)\s*$", re.MULTILINE)
_ID = re.compile(r"(\d{1,15})(?:\D(\d{1,15}))?")


class QueuePosition:
    """The place in the line that jobs have which wait for nothing else."""

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._line = CachedQuery(LINE, KEPT_S, WAIT_S, OLD_S)
        self._config = CachedQuery(CONFIG, CONFIG_KEPT_S, WAIT_S, CONFIG_KEPT_S + OLD_S)

    def before(self, jobs: Sequence[SlurmJob]) -> Dict[str, int]:
        """Return how many jobs wait before each of these, by its id; only for those that wait for their turn, if Slurm says it."""
        waiting = [job.id for job in jobs if job.state == WAITS and job.reason in TURNS]
        if not waiting:
            return {}
        self._line.begin()
        try:
            if hides_jobs(self._config.answer_at_hand()):
                return {}
            line = parse_line(self._line.answer_at_hand())
        except SlurmSilentError:
            return {}
        return {job: line.before(job) for job in waiting if job in line.places}


def hides_jobs(text: str) -> bool:
    """Whether users see no jobs of others, by an answer to CONFIG; True if it does not say."""
    found = _PRIVATE.search(text)
    return found is None or not {"jobs", "all"}.isdisjoint(found[1].lower().split(","))


class JobPriority(NamedTuple):
    """Where a job stands: one of a higher priority, or that was submitted earlier, is before it."""

    partitions: FrozenSet[str]
    order: Tuple[int, int, int]


class WaitingJobs:
    """The jobs of a cluster that wait."""

    def __init__(self, places: Dict[str, JobPriority], counted: List[JobPriority]) -> None:
        """Take the place of each job, and those that count for others."""
        self.places = places
        self._counted = counted
        self._orders: Dict[FrozenSet[str], List[Tuple[int, int, int]]] = {}

    def before(self, job: str) -> int:
        """Return how many jobs are before one of these in any of its partitions."""
        place = self.places[job]
        orders = self._orders.get(place.partitions)
        if orders is None:
            near = (other for other in self._counted if other.partitions & place.partitions)
            orders = self._orders[place.partitions] = sorted(other.order for other in near)
        return bisect.bisect_left(orders, place.order)


@functools.lru_cache(maxsize=1)
def parse_line(text: str) -> WaitingJobs:
    """Read an answer to LINE. A line that is not of a job is left out."""
    places, counted = {}, []
    for line in text.splitlines():
        fields = line.strip().split("|", 3)
        found = _ID.match(fields[0])
        if len(fields) != 4 or found is None or not re.fullmatch("[0-9]{1,15}", fields[2]):
            continue
        order = (-int(fields[2]), int(found[1]), int(found[2] or 0))
        places[fields[0]] = place = JobPriority(frozenset(fields[1].split(",")), order)
        if is_in_line(fields[3]):
            counted.append(place)
    return WaitingJobs(places, counted)
