"""A client that launches many runs in threads and follows them all, over one line; it prints what it has seen as JSON.

`many_runs.py HOST COUNT SECONDS`, in the project's folder. Each run prints ten lines and logs one metric a second, with
the time, until a file appears. All share one clock: it is one machine.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base.delayed_interrupts import NoInterrupts
from launcher.config.lookup import Lookup
from launcher.copy.request import Request
from launcher.runs.follow.following import follow
from launcher.runs.follow.view import NullView
from launcher.runs.launch.launching import Started, launch
from launcher.runs.run_client import Opening, over_shared_connection
from launcher.transport.connecting import open_shared_connection

if TYPE_CHECKING:
    from launcher.copy.record_sync import News

LAUNCHES = 3
SETTLE_S = 5.0
TALKS = """
import os, sys, time, launcher_worker as worker
step, turn, latest = 0, time.time(), time.time() + 900
while not os.path.exists(sys.argv[1]) and turn < latest:
    for _ in range(10):
        print("said at", time.time(), flush=True)
        turn += 0.1
        time.sleep(max(0.0, turn - time.time()))
    step += 1
    worker.log(step, loss=1.0, written=time.time())
worker.done(step)
"""


class Seen(NullView):
    """Notes how old each metric and each line is when it is shown."""

    def __init__(self) -> None:
        self.metrics: list[tuple[float, float]] = []
        self.lines: list[tuple[float, float]] = []

    def news(self, news: News) -> None:
        """Note them, each with the time when it was written."""
        now = time.time()
        for event in news.events:
            written = event.values.get("written")
            if isinstance(written, float):
                self.metrics.append((written, now - written))
        for printed in news.log:
            for line in printed.text.splitlines():
                if line.startswith("said at"):
                    written = float(line.split()[-1])
                    self.lines.append((written, now - written))


def main() -> None:
    """Launch, follow, and print what was seen in a while in which all runs talk."""
    host, count, seconds = Lookup().host(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    stop = Path(tempfile.mkdtemp(prefix="launch-many-"), "stop")
    stop.parent.chmod(0o755)  # runs of other users look for it
    views = [Seen() for _ in range(count)]
    with (
        open_shared_connection(host) as line,
        concurrent.futures.ThreadPoolExecutor(LAUNCHES) as few,
        concurrent.futures.ThreadPoolExecutor(count) as many,
    ):
        opening = over_shared_connection(line)
        began = time.time()
        begun = [few.submit(_launch, host.name, stop, view, opening) for view in views]
        runs = [started.result() for started in begun]
        launched_s = time.time() - began
        ends = [
            many.submit(follow, run.host, run.local_copy, view, run.client, pulls=False, opening=opening)
            for run, view in zip(runs, views, strict=True)
        ]
        time.sleep(SETTLE_S)
        print(json.dumps({"following": [run.local_copy.run for run in runs]}), flush=True)
        since, used = time.time(), os.times()
        time.sleep(seconds)
        until, after = time.time(), os.times()
        time.sleep(SETTLE_S)
        stop.touch()
        states = [end.result().state for end in ends]
        shutil.rmtree(stop.parent)
    found = {
        "launched_s": launched_s,
        "seconds": until - since,
        "cpu_s": after.user + after.system - used.user - used.system,
        "metrics": [age for view in views for at, age in view.metrics if since <= at < until],
        "lines": [age for view in views for at, age in view.lines if since <= at < until],
        "losses": sum(view.losses for view in views),
        "states": [str(state) for state in states],
    }
    print(json.dumps(found), flush=True)


def _launch(host: str, stop: Path, view: Seen, opening: Opening) -> Started:
    words = ("python", "train.py", str(stop))
    return launch(Request(host=host, words=words), view, opening=opening, hold=NoInterrupts)


if __name__ == "__main__":
    main()
