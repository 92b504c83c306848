"""The output of `check --sarif`: SARIF 2.1.0, the form in which code hosts and editors read problems."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from launcher import __version__
from launcher.check.file_report import Change, Finding
from launcher.check.reading.positions import Region
from launcher.check.rule import Rule
from launcher.check.rules.table import RULES

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_BASE = "SRCROOT"


def sarif_log(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the SARIF log of some problems. Files that cannot be checked are notifications of the tool."""
    codes = [*RULES]
    problems = [_result(one, codes.index(one.code)) for one in findings if one.code is not None]
    unchecked = [_notification(one) for one in findings if one.code is None]
    driver = {"name": "launch check", "version": __version__, "rules": [_rule(one) for one in RULES.values()]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_BASE: {"uri": f"file://{quote(os.fsencode(Path.cwd()))}/"}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": unchecked}],
        "results": problems,
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    text = f"{rule.why}\n\nInstead of:\n\n{rule.bad}\nwrite:\n\n{rule.good}"
    markdown = (
        f"{rule.why}\n\nInstead of:\n\n```python\n{rule.bad}```\n\nwrite:\n\n```python\n{rule.good}```\n"
    )
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": rule.why},
        "help": {"text": text, "markdown": markdown},
        "defaultConfiguration": {"level": "error"},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    result = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": "error",
        "message": {"text": f"{finding.message}\nMend: {finding.mend}"},
        "locations": [_location(finding)],
    }
    if finding.changes and all(change.region.cell is None for change in finding.changes):
        result["fixes"] = [_fix(finding)]
    return result


def _notification(finding: Finding) -> dict[str, Any]:
    return {"level": "error", "message": {"text": finding.message}, "locations": [_location(finding)]}


def _location(finding: Finding) -> dict[str, Any]:
    """Return the place of a problem. That in a notebook has no lines of its file, so it is named by its cell."""
    place: dict[str, Any] = {"artifactLocation": _artifact(finding.path)}
    if finding.region.cell is None:
        return {"physicalLocation": {**place, "region": _region(finding.region)}}
    return {
        "physicalLocation": place,
        "logicalLocations": [{"fullyQualifiedName": finding.region.start_text}],
    }


def _artifact(path: Path) -> dict[str, str]:
    here = Path.cwd()
    if path.is_relative_to(here):
        return {"uri": quote(os.fsencode(path.relative_to(here))), "uriBaseId": _BASE}
    return {"uri": f"file://{quote(os.fsencode(path))}"}


def _region(region: Region) -> dict[str, int]:
    return {
        "startLine": region.line,
        "startColumn": region.column,
        "endLine": region.end_line,
        "endColumn": region.end_column,
    }


def _fix(finding: Finding) -> dict[str, Any]:
    by_path: dict[Path, list[Change]] = {}
    for change in finding.changes:
        by_path.setdefault(change.edit.path, []).append(change)
    changes = [
        {"artifactLocation": _artifact(path), "replacements": [_replacement(one) for one in several]}
        for path, several in by_path.items()
    ]
    return {"description": {"text": finding.mend}, "artifactChanges": changes}


def _replacement(change: Change) -> dict[str, Any]:
    return {"deletedRegion": _region(change.region), "insertedContent": {"text": change.edit.text.decode()}}
