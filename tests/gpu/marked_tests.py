"""The part `tests`: everything marked `gpu`, by pytest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from gpu.parts import NOT_ON_A_CPU, Row
from gpu.station import Station
from testbed.client import REPOSITORY

MARK = "@pytest.mark." + "gpu"


def tests(station: Station) -> Iterator[Row]:
    """Run them; the other files are not loaded, for they need packages that may not be here."""
    files = [path for path in sorted((REPOSITORY / "tests").rglob("test_*.py")) if MARK in path.read_text()]
    report = station.folder / "report.xml"
    words = [*("-m", "gpu", "-q", "-p", "no:cacheprovider"), f"--junitxml={report}", *map(str, files)]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=REPOSITORY, check=False)
    if not report.exists():
        raise RuntimeError(f"pytest ended with {done.returncode} before its first test")
    yield from outcomes(report, is_rehearsed=station.is_rehearsed)


def outcomes(report: Path, *, is_rehearsed: bool) -> Iterator[Row]:
    """Read a row of each test in a JUnit report; one that pytest skips has not failed, and has shown nothing."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
        messages = {part.tag: part.get("message", "") for part in case}
        outcome = next((name for name in ("failure", "error", "skipped") if name in messages), "passed")
        message = messages.get(outcome, "").partition("\n")[0]
        is_absent = outcome == "skipped"
        shown = NOT_ON_A_CPU if is_absent and is_rehearsed else outcome
        yield {
            "what": f"`{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}`",
            "found": f"{shown}: {message}" if message else shown,
            "seconds": float(case.get("time", 0)),
            "ok": None if is_absent else outcome == "passed",
        }
