"""Which build of torch has code for which card, and which driver loads it: the table of `images/torch.toml`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, model_validator

from launcher.values.base import Written
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


class WheelBuild(Written):
    """A build for one CUDA, for some versions of torch: the architectures that it has code for, and PTX for newer ones."""

    name: BuildName
    torch: Annotated[str, AfterValidator(_specifier)]
    x86_64: tuple[Capability, ...]
    aarch64: tuple[Capability, ...] = ()
    ptx: Capability | None = None

    @property
    def cuda_major(self) -> int:
        """CUDA's major version, on which the driver hangs: 12 of cu126."""
        return int(self.name[2:4])

    def has_code(self, compute: tuple[int, int], machine: Machine) -> bool:
        """Whether there is code for a capability: that for X.Y runs on X.Z, Z >= Y."""
        listed = [numbers(one) for one in getattr(self, machine)]
        return any(major == compute[0] and minor <= compute[1] for major, minor in listed)

    def has_ptx(self, compute: tuple[int, int]) -> bool:
        """Whether the driver can compile code for a capability, which is newer than all that there is code for."""
        return self.ptx is not None and compute > numbers(self.ptx)


class Release(Written):
    """A torch: its builds, the first being what plain PyPI gives; the oldest and the newest Python with wheels; its triton."""

    torch: VersionText
    builds: Annotated[tuple[BuildName, ...], Field(min_length=1)]
    experimental: tuple[BuildName, ...] = ()
    triton: str
    python: tuple[str, str]

    @property
    def version(self) -> Version:
        """The version, to be compared."""
        return Version(self.torch)


class WheelTable(Written):
    """What is known of torch's builds, at a date. `tested` is the torch of ours, where nothing is asked for.

    `drivers` are the oldest that load a CUDA of a major version, `last_drivers` the last branches for a capability.
    """

    date: str
    tested: VersionText
    drivers: dict[str, str]
    last_drivers: dict[str, str] = {}
    build: tuple[WheelBuild, ...]
    release: Annotated[tuple[Release, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_release_has_its_builds(self) -> WheelTable:
        versions = [one.version for one in self.release]
        if versions != sorted(set(versions)):
            raise ValueError("releases stand in order, the oldest first, each once")
        if Version(self.tested) not in versions:
            raise ValueError(f"tested = {self.tested}: there is no such release")
        for one in self.release:
            for name in (*one.builds, *one.experimental):
                if len(self._rows(name, one)) != 1:
                    raise ValueError(f"torch {one.torch}, {name}: expected one row of [[build]] for it")
        if missing := {str(one.cuda_major) for one in self.build} - set(self.drivers):
            raise ValueError(f"drivers: CUDA {', '.join(missing)} is missing")
        return self

    def builds_of(self, release: Release) -> tuple[WheelBuild, ...]:
        """Return a release's builds: PyPI's own first, then the official ones, then the experimental ones."""
        return tuple(self._rows(name, release)[0] for name in (*release.builds, *release.experimental))

    def _rows(self, name: str, release: Release) -> list[WheelBuild]:
        return [one for one in self.build if one.name == name and release.version in SpecifierSet(one.torch)]


def driver_numbers(written: str) -> tuple[int, ...]:
    """Return a driver's version as numbers that can be compared, e.g. (580, 65, 6); () for what is none."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", written)
    return tuple(map(int, found[0].split("."))) if found else ()
