"""The seconds of each test: kept in pytest's cache by every run, printed by `make durations`, or `durations.py 100`."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

KEY = "launcher/durations"
"""In pytest's cache: the id of a test -> seconds, CPU seconds, the worker and the time at which it ended (s, Unix)."""


def cpu_seconds() -> float:
    """Return what this process and the children that it waited for have computed."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


class Durations:
    """What each test took: set-up, call and teardown together.

    CPU seconds are those of the worker and of the children that it waited for; an agent that outlives its client is not
    counted. A fixture of the session counts for the test that asks first.
    """

    def __init__(self) -> None:
        self._counted = 0.0
        self._tests: dict[str, dict[str, float | str]] = {}

    def begin(self) -> None:
        """Count from here."""
        self._counted = cpu_seconds()

    def measure(self, report: pytest.TestReport) -> None:
        """Put the CPU seconds since the last phase into the report of this one: xdist sends it on."""
        used = cpu_seconds()
        report.cpu_s = used - self._counted  # type: ignore[attr-defined]
        self._counted = used

    def add(self, report: pytest.TestReport) -> None:
        """Add a phase."""
        test = self._tests.setdefault(report.nodeid, {"s": 0.0, "cpu_s": 0.0})
        test["s"] = round(test["s"] + report.duration, 3)
        test["cpu_s"] = round(test["cpu_s"] + getattr(report, "cpu_s", 0.0), 3)  # none if its worker died
        test["worker"] = getattr(report, "worker_id", "main")
        test["ended"] = round(report.stop, 3)

    def save(self, cache: pytest.Cache, *, is_whole: bool) -> None:
        """Keep them: those of all tests in place of the earlier ones, those of some beside them."""
        if self._tests:
            kept = {} if is_whole else cache.get(KEY, {})
            cache.set(KEY, kept | self._tests)


def main() -> None:
    """Print the dearest files and tests, and what each worker did."""
    top = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    path = Path(__file__).resolve().parents[2] / ".pytest_cache/v" / KEY
    if not path.exists():
        sys.exit("no tests have run here")
    tests = json.loads(path.read_text())
    files, counts, cpu, workers, ended = Counter(), Counter(), Counter(), Counter(), Counter()
    for nodeid, test in tests.items():
        file = nodeid.partition("::")[0]
        files[file] += test["s"]
        cpu[file] += test["cpu_s"]
        counts[file] += 1
        workers[test["worker"]] += test["s"]
        ended[test["worker"]] = max(ended[test["worker"]], test["ended"])
    print(f"{'seconds':>8} {'CPU':>7} {'tests':>6}  file")
    for file, seconds in files.most_common(top):
        print(f"{seconds:8.1f} {cpu[file]:7.1f} {counts[file]:6}  {file}")
    print(f"{files.total():8.1f} {cpu.total():7.1f} {counts.total():6}  all {len(files)} files\n")
    print(f"{'seconds':>8} {'CPU':>7}  test")
    for nodeid, test in sorted(tests.items(), key=lambda item: -item[1]["s"])[:top]:
        print(f"{test['s']:8.1f} {test['cpu_s']:7.1f}  {nodeid}")
    print(f"\n{'seconds':>8}  worker, and how long before the last it ended (s)")
    for worker, seconds in workers.items():
        print(f"{seconds:8.1f}  {worker} {max(ended.values()) - ended[worker]:.0f}")


if __name__ == "__main__":
    main()
