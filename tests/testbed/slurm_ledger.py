"""A trainer that writes down each step in a ledger outside its run, and what that ledger proves of a run on a cluster."""

from __future__ import annotations

import re
from typing import NamedTuple

INTERVAL = 5
"""Steps between two checkpoints."""
TRAINER = f"""
import os, time
import launcher_worker as worker

def note(word):
    with open(os.path.expanduser("~/ledger"), "a") as file:
        file.write(f"{{word}} {{os.uname().nodename}} {{os.getpid()}}\\n")

resumed = worker.resume_from()
begin = int(open(os.path.join(resumed, "step")).read()) if resumed else 0
note(f"from {{begin}}")
step = begin
while not os.path.exists(os.path.expanduser("~/enough")):
    step += 1
    time.sleep(0.05)
    worker.log(step, loss=1.0 / step)
    note(f"step {{step}}")
    if step % {INTERVAL} == 0:
        worker.save(step, lambda folder: open(os.path.join(folder, "step"), "w").write(str(step)))
worker.done(step)
"""
"""It trains until ~/enough is there, and saves every INTERVAL steps."""
_LINE = re.compile(r"(from|step) (\d+) (\S+) (\d+)")


class Start(NamedTuple):
    """One start of the trainer: the step that it went on from, its node and pid, and its steps."""

    begin: int
    node: str
    pid: int
    steps: tuple[int, ...]

    @property
    def last(self) -> int:
        """Its last step."""
        return self.steps[-1] if self.steps else self.begin


class Ledger(NamedTuple):
    """The starts in their order, and how many lines an earlier trainer wrote after a later one had begun."""

    starts: tuple[Start, ...]
    beside: int

    @property
    def lost(self) -> int:
        """The most steps that were made again after a start."""
        pairs = zip(self.starts, self.starts[1:], strict=False)
        return max((before.last - after.begin for before, after in pairs), default=0)


def read_ledger(text: str) -> Ledger:
    """Read a ledger of TRAINER. Raises ValueError for a step that is not the next one of its start."""
    starts: list[Start] = []
    beside = 0
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"no line of the trainer: {line}")
        number, node, pid = int(match[2]), match[3], int(match[4])
        if match[1] == "from":
            starts.append(Start(number, node, pid, ()))
            continue
        place = next(n for n in reversed(range(len(starts))) if starts[n][1:3] == (node, pid))
        beside += place != len(starts) - 1
        if number != starts[place].last + 1:
            raise ValueError(f"{line} follows step {starts[place].last}")
        starts[place] = starts[place]._replace(steps=(*starts[place].steps, number))
    return Ledger(tuple(starts), beside)
