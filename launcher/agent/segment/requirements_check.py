"""Report which requirements a Python lacks.

This is a separate program: a segment runs it with its run's interpreter, with the requirements as arguments.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib import metadata
from typing import Any, List

MARK = "launch-lacks "


def main() -> int:
    """Print one line: MARK, and a JSON list of the lacking requirements; return 0."""
    print(MARK + json.dumps([text for text in sys.argv[1:] if _is_lacking(text, 0)]))
    return 0


def _is_lacking(text: str, depth: int) -> bool:
    """Whether a requirement is missing, has another version, or lacks the requirements of its extras."""
    requirement_class = _requirement_class()
    if requirement_class is None:
        return True  # pip itself can check it
    try:
        requirement = requirement_class(text)
    except ValueError:
        return True
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return False
    try:
        found = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return True
    if requirement.url is not None or not requirement.specifier.contains(found.version, prereleases=True):
        return True
    return depth < 4 and any(
        _is_lacking(_bare(inner), depth + 1) for inner in _of_extras(requirement, found, requirement_class)
    )


def _of_extras(requirement: Any, found: Any, requirement_class: Any) -> List[Any]:
    """Return the requirements of a distribution that apply because of the requested extras."""
    inner = [requirement_class(text) for text in found.requires or ()]
    return [
        one
        for one in inner
        if one.marker is not None
        and not one.marker.evaluate({"extra": ""})
        and any(one.marker.evaluate({"extra": extra}) for extra in requirement.extras)
    ]


def _bare(requirement: Any) -> str:
    """Return a requirement without its marker, which applies."""
    return str(requirement).partition(";")[0]


def _requirement_class() -> Any:
    """Return the class that parses requirements, from `packaging` or pip's copy of it; None without both."""
    for name in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            return importlib.import_module(name).Requirement
        except ImportError:
            continue
    return None


if __name__ == "__main__":
    sys.exit(main())
