"""The number of jobs before ours in the queue of our partitions, from one query for the whole cluster.

Slurm is asked only while a run waits for its turn, and the answer is cached for long, because a cluster may
have very many jobs. The number is not worth a delay: without an answer it is left out. It is also left out
where users see only their own jobs.
"""

from __future__ import annotations

import bisect
import functools
import re
from typing import Dict, FrozenSet, List, NamedTuple, Sequence, Tuple

from .slurm_jobs import TURNS, WAITS, SlurmJob, is_in_line
from .slurm_programs import CONFIG, CachedQuery, SlurmSilentError

LINE = ("squeue", "--all", "--noheader", "--array", "--states=PENDING", "--format=%i|%P|%Q|%r")
"""Asks for the waiting jobs of all users; each item of an array is a job."""
KEPT_S, WAIT_S, OLD_S = 30.0, 1.0, 60.0
CONFIG_KEPT_S = 3600.0
_PRIVATE = re.compile(r"^PrivateData\s*=\s*(\S.*?)\s*$", re.MULTILINE)
_ID = re.compile(r"(\d{1,15})(?:\D(\d{1,15}))?")


class QueuePosition:
    """The positions in the queue of jobs that wait only for their turn."""

    def __init__(self) -> None:
        """Start without answers."""
        self._line = CachedQuery(LINE, KEPT_S, WAIT_S, OLD_S)
        self._config = CachedQuery(CONFIG, CONFIG_KEPT_S, WAIT_S, CONFIG_KEPT_S + OLD_S)

    def before(self, jobs: Sequence[SlurmJob]) -> Dict[str, int]:
        """Return how many jobs wait before each of these, by id.

        Only jobs that wait for their turn are included, and only if Slurm reports their position.
        """
        waiting = [job.id for job in jobs if job.state == WAITS and job.reason in TURNS]
        if not waiting:
            return {}
        self._line.begin()
        try:
            if hides_jobs(self._config.answer()):
                return {}
            line = parse_line(self._line.answer())
        except SlurmSilentError:
            return {}
        return {job: line.before(job) for job in waiting if job in line.places}


def hides_jobs(text: str) -> bool:
    """Whether users see no jobs of others, by an answer to CONFIG; True if the answer does not contain it."""
    found = _PRIVATE.search(text)
    return found is None or not {"jobs", "all"}.isdisjoint(found[1].lower().split(","))


class JobPriority(NamedTuple):
    """The sort key of a job in the queue: a higher priority or an earlier submission comes first."""

    partitions: FrozenSet[str]
    order: Tuple[int, int, int]


class WaitingJobs:
    """The waiting jobs of a cluster."""

    def __init__(self, places: Dict[str, JobPriority], counted: List[JobPriority]) -> None:
        """Store the place of each job, and the places of the jobs that count as being in line."""
        self.places = places
        self._counted = counted
        self._orders: Dict[FrozenSet[str], List[Tuple[int, int, int]]] = {}

    def before(self, job: str) -> int:
        """Return how many jobs are before this one in any of its partitions."""
        place = self.places[job]
        orders = self._orders.get(place.partitions)
        if orders is None:
            near = (other for other in self._counted if other.partitions & place.partitions)
            orders = self._orders[place.partitions] = sorted(other.order for other in near)
        return bisect.bisect_left(orders, place.order)


@functools.lru_cache(maxsize=1)
def parse_line(text: str) -> WaitingJobs:
    """Parse an answer to LINE. A line that does not describe a job is left out."""
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
