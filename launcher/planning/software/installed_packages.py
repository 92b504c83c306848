"""The requirements of a job that an interpreter's packages do not meet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from launcher.values.facts import Facts, Interpreter

_SYSTEMS = {"linux": "Linux", "darwin": "Darwin"}


class Unmet(NamedTuple):
    """The missing packages, and those with another version, as `peft 0.9, not >=0.11`."""

    missing: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()


def unmet(requirements: Iterable[str], facts: Facts) -> Unmet:
    """Return the unmet requirements for a host's interpreter, among the packages that the probe looked for."""
    interpreter = facts.interpreter
    if interpreter is None:
        return Unmet()
    place = _markers(interpreter, facts)
    wanted = [Requirement(one) for one in requirements]
    needed = [one for one in wanted if one.marker is None or one.marker.evaluate(place)]
    names = {one.name for one in needed}  # the probe may have looked for more
    installed = {name: version for name, version in interpreter.packages.items() if name in names}
    return Unmet(
        tuple(name for name, version in installed.items() if version is None),
        tuple(
            f"{one.name} {version}, not {one.specifier}"
            for one in needed
            if (version := installed.get(one.name)) is not None and not _is_met(one, version)
        ),
    )


def _is_met(wanted: Requirement, installed: str) -> bool:
    try:
        return wanted.specifier.contains(Version(installed), prereleases=True)
    except InvalidVersion:  # a private build
        return True


def _markers(interpreter: Interpreter, facts: Facts) -> dict[str, str]:
    """Return a host's values for the variables in markers."""
    version = interpreter.version or ""
    python = (
        {"python_version": ".".join(version.split(".")[:2]), "python_full_version": version}
        if version
        else {}
    )
    system = {"sys_platform": facts.platform, "platform_system": _SYSTEMS.get(facts.platform, "")}
    return {**python, **system, "platform_machine": facts.machine, "os_name": "posix", "extra": ""}
