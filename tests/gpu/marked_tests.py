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
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=REPOSITORY, check=False)
    yield from outcomes(report, is_rehearsed=station.is_rehearsed)


def outcomes(report: Path, *, is_rehearsed: bool) -> Iterator[Row]:
    """Read a row of each test in a JUnit report; one that pytest skips has not failed, and has shown nothing."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
        found = {part.tag: part.get("message", "") for part in case}
        kind = next((kind for kind in ("failure", "error", "skipped") if kind in found), "passed")
        text = kind if kind == "passed" else f"{kind}: {found[kind].splitlines()[0] if found[kind] else ''}"
        is_absent = kind == "skipped"
        yield {
            "what": f"`{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}`",
            "found": f"{NOT_ON_A_CPU}: {found[kind]}" if is_absent and is_rehearsed else text,
            "seconds": float(case.get("time", 0)),
            "ok": None if is_absent else kind == "passed",
        }
