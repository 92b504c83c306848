"""A client that follows runs in threads, to their ends, over one line: `follow_all.py HOST RUN…`. It prints their states."""

from __future__ import annotations

import concurrent.futures
import json
import sys

from launcher.backends.registry import backend_of
from launcher.config.lookup import Lookup
from launcher.copy.local_copy import LocalCopy
from launcher.copy.runs_folder import runs_folder
from launcher.runs.follow.sessions import follow_sessions
from launcher.runs.follow.view import NullView
from launcher.runs.run_client import over_shared_connection


def main() -> None:
    """Follow them; return once all have ended."""
    host, runs = Lookup().host(sys.argv[1]), sys.argv[2:]
    with (
        backend_of(host).open_shared_connection(host) as line,
        concurrent.futures.ThreadPoolExecutor(len(runs)) as threads,
    ):
        followed = [
            threads.submit(
                follow_sessions,
                host,
                LocalCopy(run, runs_folder()),
                NullView(),
                opening=over_shared_connection(line),
            )
            for run in runs
        ]
        print(json.dumps({run: str(one.result().state) for run, one in zip(runs, followed, strict=True)}))


if __name__ == "__main__":
    main()
