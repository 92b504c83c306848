"""Runs and uploads over bad links at their full counts: `make links` writes the table LINKS.md; CI runs fewer cuts."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

HERE = Path(__file__).resolve().parent
TABLE = HERE / "LINKS.md"
CUTS = 20
SCENARIOS = ("tests/runs/test_bad_links.py", "tests/hosts/test_behind.py")
HEAD = """\
# Bad links

Written by `make links` on {date} ({system}, Python {python}); every row passed its test, or there would be no table.
*Identical* is by `sha256sum` on the host, over plain ssh, against the mirror, or for an upload against the tree.
The relay of `tests/testbed/link.py` stands for the link: a lost segment is a stall of 200 ms.

| what was done | how it ended | identical | reconnects |
| --- | --- | --- | --- |
"""


def rows(report: Path) -> Iterator[str]:
    """Yield a line of the table for each test that recorded what it did."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if said:
            yield f"| {said['done']} | {said['end']} | {said['identical']} | {said['reconnects']} |\n"


def main() -> int:
    """Run the scenarios and write the table; return pytest's exit code, and write none where that is not 0."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", *SCENARIOS, "-q"),
            *(f"--junitxml={report}", "-o", "junit_family=xunit1"),  # the one that holds what tests record
        ]
        environment = {**os.environ, "LAUNCH_CUTS": str(CUTS), "LAUNCH_TESTBED": "required"}
        code = subprocess.run(command, cwd=HERE.parents[1], env=environment, check=False).returncode
        if code == 0:
            head = HEAD.format(
                date=dt.datetime.now(dt.UTC).date(),
                system=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
                python=platform.python_version(),
            )
            TABLE.write_text(head + "".join(rows(report)))
            print(f"written: {TABLE}")
        return code


if __name__ == "__main__":
    sys.exit(main())
