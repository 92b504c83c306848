"""The table of torch builds in `images/torch.toml`: each build's supported cards and drivers.

Example: build cu126 of torch 2.13 has code for capability 7.5 (a T4) and needs a driver for CUDA 12.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, model_validator

from launcher.values.base import StrictModel
from launcher.values.precision import Capability, numbers

Machine = Literal["x86_64", "aarch64"]


def _version(written: str) -> str:
    try:
        Version(written)
    except InvalidVersion as error:
        raise ValueError("expected a version such as 2.13.0") from error
    return written


def _specifier(written: str) -> str:
    try:
        SpecifierSet(written)
    except InvalidSpecifier as error:
        raise ValueError("expected versions such as >=2.6,<2.15") from error
    return written


VersionText = Annotated[str, AfterValidator(_version)]
BuildName = Annotated[str, Field(pattern=r"^cu[0-9]{3}$")]


class WheelBuild(StrictModel):
    """A build for one version of CUDA and a range of torch versions: its architectures, and its PTX for newer cards."""

    name: BuildName
    torch: Annotated[str, AfterValidator(_specifier)]
    x86_64: tuple[Capability, ...]
    aarch64: tuple[Capability, ...] = ()
    ptx: Capability | None = None

    @property
    def cuda_major(self) -> int:
        """CUDA's major version, which decides the needed driver: 12 for cu126."""
        return int(self.name[2:4])

    def has_code(self, compute: tuple[int, int], machine: Machine) -> bool:
        """Whether the build has code for a capability: code for X.Y runs on X.Z if Z >= Y."""
        listed = [numbers(capability) for capability in getattr(self, machine)]
        return any(major == compute[0] and minor <= compute[1] for major, minor in listed)

    def has_ptx(self, compute: tuple[int, int]) -> bool:
        """Whether the driver can compile the build's PTX for a capability newer than all of its architectures."""
        return self.ptx is not None and compute > numbers(self.ptx)


class Release(StrictModel):
    """A release of torch: its builds (PyPI's own first), the oldest and newest Python with wheels, and its triton."""

    torch: VersionText
    builds: Annotated[tuple[BuildName, ...], Field(min_length=1)]
    experimental: tuple[BuildName, ...] = ()
    triton: str
    python: tuple[str, str]

    @property
    def version(self) -> Version:
        """The version, for comparisons."""
        return Version(self.torch)


class WheelTable(StrictModel):
    """The builds of torch as of a date.

    `tested` is the version that launcher chooses unless the job requests another. `drivers` maps a major
    version of CUDA to the oldest driver that loads it, `last_drivers` a capability to its last driver branch.
    """

    date: str
    tested: VersionText
    drivers: dict[str, str]
    last_drivers: dict[str, str] = {}
    build: tuple[WheelBuild, ...]
    release: Annotated[tuple[Release, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_release_has_its_builds(self) -> WheelTable:
        versions = [release.version for release in self.release]
        if versions != sorted(set(versions)):
            raise ValueError("releases must be in order, the oldest first, each once")
        if Version(self.tested) not in versions:
            raise ValueError(f"tested = {self.tested}: expected one of the releases")
        for release in self.release:
            for name in (*release.builds, *release.experimental):
                if len(self._rows(name, release)) != 1:
                    raise ValueError(f"torch {release.torch}, {name}: expected one row of [[build]] for it")
        if missing := {str(build.cuda_major) for build in self.build} - set(self.drivers):
            raise ValueError(f"drivers: CUDA {', '.join(missing)} is missing")
        return self

    def builds_of(self, release: Release) -> tuple[WheelBuild, ...]:
        """Return a release's builds: PyPI's own first, then the official ones, then the experimental ones."""
        return tuple(self._rows(name, release)[0] for name in (*release.builds, *release.experimental))

    def _rows(self, name: str, release: Release) -> list[WheelBuild]:
        return [
            build
            for build in self.build
            if build.name == name and release.version in SpecifierSet(build.torch)
        ]


def driver_numbers(written: str) -> tuple[int, ...]:
    """Return a driver's version as numbers that can be compared, e.g. (580, 65, 6); () if it is not a version."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", written)
    return tuple(map(int, found[0].split("."))) if found else ()
