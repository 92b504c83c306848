"""How long commands take on a host with a long history, and the table of it: `make scale`."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from testbed.client import Client
from testbed.history import repeat

COUNT = 10_000
TRIES = 3
TABLE = Path(__file__).with_name("SCALE.md")
SCRIPT = 'print(\'{"step": 1, "loss": 2.0}\')\n'


class Row(NamedTuple):
    """What was done, how long it took in seconds, and how long it may take."""

    what: str
    seconds: float
    bar: float | None = None

    def line(self) -> str:
        """Return the row of the table."""
        bar = "" if self.bar is None else f"≤ {self.bar:g} s"
        met = "" if self.bar is None else "yes" if self.seconds <= self.bar else "NO"
        return f"| {self.what} | {self.seconds:.2f} s | {bar} | {met} |"


def timed(command: Callable[[], object], tries: int = 1) -> float:
    """Return the median time of a command."""
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        command()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(client: Client, count: int) -> list[Row]:
    """Return the rows for a host with `count` runs, one of them alive and one of 2,000 interrupted."""
    client.script(SCRIPT)
    client.script("import time\ntime.sleep(3600)\n", "long.py")
    launch = ("--set", "inject=false", "--", "python3", "train.py")
    short = timed(lambda: client.ok(*launch), TRIES)
    ended = json.loads(client.ok("ps", "--json"))["runs"][0]["run"]
    live = client.detached("--", "python3", "long.py")
    client.ok(*launch)  # the last run has ended
    root = client.home / ".launch"
    ids = repeat(root / "runs" / ended, count, interrupted_every=2000)
    here = ("--host", "local")
    rows = [Row("launch to its end, in a new root", short)]

    def row(what: str, *words: str, bar: float | None = None, tries: int = TRIES) -> None:
        rows.append(Row(f"`launch {what}", timed(lambda: client.ok(*words, timeout=600), tries), bar))
        print(rows[-1].line(), flush=True)

    row("ps --host` for the first time", "ps", *here, tries=1)
    row("ps --host`", "ps", *here, bar=2)
    row("ps --host --json`", "ps", "--json", *here)
    row("ps --host --limit 20`", "ps", "--limit", "20", *here)
    row("attach --host RUN`", "attach", ids[77], *here, bar=1)
    row("attach --host last`", "attach", "last", *here, bar=1)
    row("metrics --host RUN`", "metrics", ids[78], *here)
    row("rm --host RUN`", "rm", "--force", ids[79], *here, tries=1)
    row("gc --host --dry-run`", "gc", "--dry-run", *here, tries=1)
    row("gc --host`", "gc", *here, bar=30, tries=1)
    row("stop --now --host RUN`", "stop", "--now", live, *here, tries=1)
    rows.append(Row("launch to its end, with that history", timed(lambda: client.ok(*launch), TRIES)))
    print(rows[-1].line(), flush=True)
    return rows


def main() -> int:
    """Write the table; return 1 if a bar was missed."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    Client.is_forked = False
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Client(Path(folder)), count)
    head = "| what | time | bar | met |\n| --- | --- | --- | --- |\n"
    text = (
        f"# A long history\n\nWritten by `make scale` on {dt.datetime.now(dt.UTC).date()} ({platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}); do not edit.\n\n"
        f"{count:,} recorded runs in one root on this machine: copies of one real run, one of 2,000 interrupted, and one that is "
        f"alive.\nTimes are of whole commands, each a new process; medians of {TRIES} where a command changes nothing.\n\n"
    )
    if count == COUNT:
        TABLE.write_text(text + head + "".join(f"{row.line()}\n" for row in rows))
    return int(any(row.bar is not None and row.seconds > row.bar for row in rows))


if __name__ == "__main__":
    sys.exit(main())
