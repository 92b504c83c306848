"""Choose the torch and its build (its wheels) for a card, by capability, driver, Python and the job's pins.

A wheel runs on a card only if it contains code for its capability, and only if the driver loads its CUDA.
Example: a T4 (capability 7.5) with driver 535 gets the cu126 build, because cu130 needs a newer driver. A
card that the newest release no longer supports gets the last release with code for it. The table is
`images/torch.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from launcher.errors import RefusedError
from launcher.planning.software.wheels import Machine, Release, WheelBuild, WheelTable, driver_numbers
from launcher.values.facts import Facts
from launcher.values.precision import numbers
from launcher.values.profile import Profile
from launcher.values.public_result import public
from launcher.values.software.image import BuildOptions
from launcher.values.software.packages import InstalledPackages
from launcher.values.software.requirement import normalized, package_of

CPU = "cpu"
_SM = re.compile(r"sm_([0-9]{2,3})[af]?")


class TorchTarget(NamedTuple):
    """The target of a torch: the card, and the host's driver, Python and processor. None means unknown."""

    profile: Profile
    driver: str | None = None
    python: tuple[int, int] | None = None
    machine: Machine = "x86_64"


class HostSoftware(NamedTuple):
    """The inputs of torch's choice besides the card: the host's driver and processor. None means unknown."""

    driver: str | None = None
    machine: Machine = "x86_64"

    def with_card(self, profile: Profile, python: tuple[int, int] | None = None) -> TorchTarget:
        """Return the target for a card, and optionally a Python, on this host."""
        return TorchTarget(profile, self.driver, python, self.machine)


UNKNOWN = HostSoftware()
"""A host that has not been probed."""


def site(facts: Facts | None) -> HostSoftware:
    """Return a host's driver and processor from its probe."""
    if facts is None:
        return UNKNOWN
    machine: Machine = "aarch64" if facts.machine in ("aarch64", "arm64") else "x86_64"
    return HostSoftware(next((gpu.driver for gpu in facts.gpus), None), machine)


@public("Wheels")
class TorchChoice(NamedTuple):
    """The chosen torch; see `launch image show`."""

    torch: str
    build: str | None
    url: str | None
    why: str
    notes: tuple[str, ...] = ()


class _Pair(NamedTuple):
    release: Release
    build: WheelBuild | None


def choose(table: WheelTable, place: TorchTarget, wanted: SpecifierSet | None = None) -> TorchChoice:
    """Return the torch and the build for a card.

    Of the releases in `wanted` that run on the card, the tested one is chosen, else the newest. A card that
    the newest release no longer supports gets the last release with code for it. Among a release's builds,
    PyPI's own is preferred, then the newest CUDA that the driver loads; if the driver is unknown, the CUDA
    that most drivers load. Raises RefusedError, with the nearest torch that would run, if no release in
    `wanted` runs.
    """
    wanted = wanted if wanted is not None else SpecifierSet()
    releases = _releases(table, wanted)
    local = _local(wanted)
    fitting = [pair for release in releases for pair in _fitting(table, release, place, local)]
    if not fitting:
        raise RefusedError(_refusal(table, place, wanted, releases))
    release = _preferred(table, place, fitting)
    builds = [pair.build for pair in fitting if pair.release == release]
    build = _build(release, builds, place)
    exact = _exact(wanted)
    version = exact if exact is not None and Version(exact) != release.version else release.torch
    notes = [*_notes(table, place, release, build), *_unknown(table, version, release)]
    why = f"{_why_release(table, place, release, wanted)}; {_why_build(table, place, release, build)}"
    if place.profile.kind == "mps":
        return TorchChoice(version, None, None, why, tuple(notes))
    name = build.name if build is not None else CPU
    return TorchChoice(version, name, index_of(name), why, tuple(notes))


def index_of(build: str) -> str:
    """Return the URL of PyTorch's package index for a build."""
    return f"https://download.pytorch.org/whl/{build}"


# releases


def _releases(table: WheelTable, wanted: SpecifierSet) -> list[Release]:
    """Return the requested releases; for a version missing in the table, the release that is most like it."""
    exact = _exact(wanted)
    if exact is None:
        return [one for one in table.release if one.version in wanted]
    version = Version(exact)
    if found := [one for one in table.release if one.version == version]:
        return found
    alike = [one for one in table.release if one.version.release[:2] == version.release[:2]]
    newest = table.release[-1]
    return alike[-1:] or ([newest] if version > newest.version else [])


def _exact(wanted: SpecifierSet) -> str | None:
    """Return the requested version without its build; None for a range. Raises RefusedError for several versions."""
    pins = [one.version for one in wanted if one.operator in ("==", "===") and not one.version.endswith(".*")]
    exact = sorted({one.partition("+")[0] for one in pins})
    try:
        versions = {Version(one) for one in exact}
    except InvalidVersion as error:
        raise RefusedError(f"torch{wanted}: no version of torch: {error}") from error
    if len(versions) > 1:
        raise RefusedError(f"torch{wanted}: an image holds one version of torch: name one of them")
    return exact[0] if exact else None


def _local(wanted: SpecifierSet) -> str | None:
    """Return the requested build, e.g. `cu126` for `==2.9.1+cu126`."""
    return next((one.version.partition("+")[2] for one in wanted if "+" in one.version), None)


def objection(table: WheelTable, place: TorchTarget, installed: str) -> str | None:
    """Return why an installed torch, such as `2.13.0+cu130`, does not run on a card; None if no reason is known.

    A version without a build is assumed to be PyPI's.
    """
    version, _, local = installed.partition("+")
    exact = [one for one in table.release if one.torch == version]
    if not exact or place.profile.compute is None:
        return None
    if local == CPU:
        return f"torch {installed} has no CUDA"
    name = local or exact[0].builds[0]
    found = [one for one in table.builds_of(exact[0]) if one.name == name]
    why = _objection(table, found[0], place) if found else None
    return f"torch {installed}: {why}" if why else None


def _preferred(table: WheelTable, place: TorchTarget, fitting: list[_Pair]) -> Release:
    releases = [pair.release for pair in fitting]
    tested = [one for one in releases if one.torch == table.tested]
    return tested[0] if tested and not _is_left_behind(table, place) else releases[-1]


def _is_left_behind(table: WheelTable, place: TorchTarget) -> bool:
    """Whether the newest release no longer has code for the card, because the card is too old, not too new."""
    compute = place.profile.compute
    newest = table.builds_of(table.release[-1])
    if compute is None or any(_has_code(one, compute, place.machine) for one in newest):
        return False
    return any(compute < numbers(code) for one in newest for code in getattr(one, place.machine))


def _last(table: WheelTable, place: TorchTarget) -> Release:
    """Return the last release with code for a card, regardless of the driver."""
    return [
        one
        for one in table.release
        if _fitting(table, one, TorchTarget(place.profile, machine=place.machine))
    ][-1]


# builds


def _fitting(
    table: WheelTable, release: Release, place: TorchTarget, local: str | None = None
) -> list[_Pair]:
    """Return a release paired with each of its builds that runs on `place`; only the build `local` if given."""
    if _python_objection(release, place):
        return []
    builds = [one for one in table.builds_of(release) if local in (None, one.name)]
    if place.profile.compute is None and local not in (None, CPU):  # a CUDA build also runs without a card
        return [_Pair(release, one) for one in builds]
    if place.profile.compute is None:
        return [_Pair(release, None)]
    return [_Pair(release, one) for one in builds if _objection(table, one, place) is None]


def _objection(table: WheelTable, build: WheelBuild, place: TorchTarget) -> str | None:
    """Return why a build does not run on a card; None if it does."""
    compute = place.profile.compute
    if compute is not None and not _has_code(build, compute, place.machine):
        return f"{build.name} has no code for capability {place.profile.capability}"
    least = table.drivers[str(build.cuda_major)]
    if place.driver is not None and driver_numbers(place.driver) < driver_numbers(least):
        return f"{build.name} needs driver {least}, and the host has {place.driver}"
    return None


def _has_code(build: WheelBuild, compute: tuple[int, int], machine: Machine) -> bool:
    return build.has_code(compute, machine) or build.has_ptx(compute)


def _python_objection(release: Release, place: TorchTarget) -> str | None:
    oldest, newest = (numbers(one) for one in release.python)
    if place.python is None or oldest <= place.python <= newest:
        return None
    return f"torch {release.torch} has wheels for Python {release.python[0]} to {release.python[1]}, not {place.python[0]}.{place.python[1]}"


def _build(release: Release, builds: list[WheelBuild | None], place: TorchTarget) -> WheelBuild | None:
    known = [one for one in builds if one is not None]
    if not known:
        return None
    official = [one for one in known if one.name in release.builds] or known
    if place.driver is None:
        oldest = min(one.cuda_major for one in official)
        official = [one for one in official if one.cuda_major == oldest]
    default = [one for one in official if one.name == release.builds[0]]
    return default[0] if default else max(official, key=lambda one: one.name)


# in words


def _why_release(table: WheelTable, place: TorchTarget, release: Release, wanted: SpecifierSet) -> str:
    if _exact(wanted) is not None:
        return f"torch {_exact(wanted)} is asked for"
    if release.torch == table.tested:
        return f"torch {release.torch} is the one that launch is tested with"
    if _is_left_behind(table, place) and release == _last(table, place):
        return f"torch {release.torch} is the last with code for capability {place.profile.capability}"
    return f"torch {release.torch} is the newest that runs here"


def _why_build(table: WheelTable, place: TorchTarget, release: Release, build: WheelBuild | None) -> str:
    if build is None:
        return "a build without CUDA" if place.profile.kind == "cpu" else "PyPI's build, which has Metal"
    if place.profile.compute is None:
        return f"{build.name} is asked for, and runs without a card"
    least = table.drivers[str(build.cuda_major)]
    known = f"driver {place.driver} loads it" if place.driver else f"any driver from {least} on loads it"
    by_default = ", as from plain PyPI" if build.name == release.builds[0] else ""
    return f"{build.name} has code for capability {place.profile.capability}{by_default}, and {known}"


def _notes(table: WheelTable, place: TorchTarget, release: Release, build: WheelBuild | None) -> list[str]:
    profile = place.profile
    if build is None or profile.compute is None:
        return []
    notes = []
    if _is_left_behind(table, place):
        notes.append(
            f"torch {_last(table, place).torch} is the last with code for a {profile.title}; later releases have none"
        )
    if branch := table.last_drivers.get(profile.capability or ""):
        notes.append(
            f"driver branch {branch} is the last for this card; nvidia-smi prints the driver's CUDA version, which this card may not run"
        )
    if build.name in release.experimental:
        notes.append(f"{build.name} of torch {release.torch} is an experimental build")
    if not build.has_code(profile.compute, place.machine):
        notes.append(
            f"a {profile.title} is newer than every build of this table ({table.date}): its code is compiled from PTX {build.ptx} at first use"
        )
    return notes


def _unknown(table: WheelTable, version: str, release: Release) -> list[str]:
    if Version(version) == release.version:
        return []
    return [f"torch {version} is not in the table ({table.date}): taken to be like {release.torch}"]


def _refusal(table: WheelTable, place: TorchTarget, wanted: SpecifierSet, releases: list[Release]) -> str:
    what = f"torch{wanted}" if str(wanted) else "torch"
    lines = [f"{what} cannot run on {place.profile.title}"]
    if not releases:
        lines[0] += (
            f": no such torch is known (oldest {table.release[0].torch}, newest {table.release[-1].torch}, {table.date})"
        )
    for release in releases[-1:]:
        if (local := _local(wanted)) and local not in (CPU, *release.builds, *release.experimental):
            lines.append(f"  torch {release.torch} has no build {local}: {', '.join(release.builds)}")
            continue
        if local == CPU and place.profile.compute is not None:
            lines.append("  a build without CUDA sees no card")
            continue
        objections = [_python_objection(release, place)] if _python_objection(release, place) else []
        objections = objections or [_objection(table, one, place) for one in table.builds_of(release)]
        lines += [f"  torch {release.torch}: {one}" for one in objections]
    possible = [one for one in table.release if _fitting(table, one, place)]
    if possible:
        nearest = _nearest(possible, wanted, releases, table)
        build = _build(nearest, [pair.build for pair in _fitting(table, nearest, place)], place)
        of = f" ({build.name})" if build is not None else ""
        lines.append(
            f'  nearest that can: {nearest.torch}{of}   requirements = ["torch=={nearest.torch}", …]'
        )
    elif any(_fitting(table, one, place._replace(driver=None)) for one in table.release):
        lines.append(f"  no torch of this table runs on it: a newer driver than {place.driver} is needed")
    else:
        lines.append("  no torch of this table runs there")
    return "\n".join(lines)


def _nearest(
    possible: list[Release], wanted: SpecifierSet, releases: list[Release], table: WheelTable
) -> Release:
    """Return, of the possible releases, the one nearest to the requested release in the table's order."""
    exact = _exact(wanted)
    order = [one.version for one in table.release]
    if releases:
        at = order.index(releases[-1].version)
    else:
        at = sum(one < Version(exact) for one in order) if exact else len(order)
    return min(possible, key=lambda one: (abs(order.index(one.version) - at), -order.index(one.version)))


def verifiable_torch(chosen: str | None, settings: BuildOptions) -> str | None:
    """Return the torch to verify; only its version for a user's index, which may name builds differently."""
    return chosen.partition("+")[0] if chosen is not None and settings.torch_index is not None else chosen


def unimported_torch(chosen: str | None, settings: BuildOptions, profile: Profile | None) -> str | None:
    """Return the torch that can be checked without importing it: its version; "" if any can; None if none can.

    Only an import shows the architectures of an unknown torch, which matter only for a card. launcher's table
    lists those of the chosen build, if that comes from the official index.
    """
    if profile is None or profile.compute is None:
        return ""
    return chosen if settings.torch_index is None and settings.pip_conf is None else None


def unfit(
    packages: InstalledPackages,
    profile: Profile | None,
    chosen: str | None,
    requirements: Collection[str] = (),
) -> list[str]:
    """Return why a Python's packages, as reported, cannot be used on a card; an empty list if they can.

    Without a profile the check needs no card. `chosen` is the expected torch, such as `2.13.0+cu126` or a
    version without its build; None if none was chosen, as in the user's own image, which may use its card
    without torch. Conflicts count only for packages named in `requirements`: a base image may have its own
    conflicts.
    """
    if packages.torch is None:
        if chosen is None:
            return []
        return [
            f"torch {chosen} cannot be imported: {packages.error}"
            if packages.error
            else f"torch {chosen} is not installed"
        ]
    found = []
    if chosen is not None:
        version, _, built = packages.torch.partition("+")
        expected, _, build = chosen.partition("+")
        if not _is_same(version, expected) or (built and build and built != build):
            found.append(f"torch is {packages.torch}, not {chosen}")
    compute = profile.compute if profile is not None else None
    if compute is not None and packages.cuda is None and chosen is not None:
        found.append(f"torch {packages.torch} has no CUDA")
    elif compute is not None and packages.cuda is not None and packages.architectures is not None:
        found.extend(_without_code(packages.torch, packages.architectures, compute))
    names = {package_of(one) for one in requirements}
    conflicts = [line for line in packages.conflicts or () if normalized(line.split(" ")[0]) in names]
    return [*found, *(f"packages that do not fit together: {line}" for line in conflicts)]


def _is_same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:  # a private build
        return one == other


def _without_code(torch: str, architectures: tuple[str, ...], compute: tuple[int, int]) -> list[str]:
    if _runs_on(architectures, compute):
        return []
    words = " ".join(architectures)
    return [f"torch {torch} has no code for capability {compute[0]}.{compute[1]}: {words}"]


def _runs_on(architectures: tuple[str, ...], compute: tuple[int, int]) -> bool:
    """Whether code for these architectures runs on a card. True for a newer card: the list does not show PTX."""
    codes = [divmod(int(found[1]), 10) for found in map(_SM.fullmatch, architectures) if found]
    is_newer = bool(codes) and compute > max(codes)
    return is_newer or any(major == compute[0] and minor <= compute[1] for major, minor in codes)
