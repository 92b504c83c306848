"""The image of a plan, from profile, job and host. The same inputs give the same bytes and so the same name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from launcher.errors import BadFileError, RefusedError
from launcher.planning.software.wheel_choice import UNKNOWN, HostSoftware, TorchChoice, TorchTarget, choose
from launcher.planning.software.wheels import WheelTable
from launcher.values.job import Job
from launcher.values.profile import Profile
from launcher.values.software.image import Build, Image
from launcher.values.software.requirement import normalized, package_of

_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
_TORCH_AND_KIN = {"torch", "torchvision", "torchaudio"}
"""Packages that are built together for one CUDA and come from one index."""


class Sources(NamedTuple):
    """The sources of images: the template of the Dockerfile, and the table of torch's builds."""

    template: str
    wheels: WheelTable


def image(
    profile: Profile, job: Job, build: Build, sources: Sources | None, site: HostSoftware = UNKNOWN
) -> Image:
    """Return the image of a job on a card. Its name depends on its contents only, never on build options.

    `site` is the host's driver and processor. A job with its own image needs no `sources`. Raises RefusedError for Apple's
    GPU and for a torch that the card cannot run, BadFileError for an invalid template.
    """
    if profile.kind == "mps":
        raise RefusedError(
            "no container sees an Apple GPU: macOS gives it to its own processes alone\n"
            "  run it natively   launch --runtime native"
        )
    if job.image is not None:
        return Image(name=job.image, dockerfile=None, requirements=())
    if sources is None:
        raise ValueError("this image must be built, and its sources are missing")
    torch = torch_for(job.requirements, site.with_card(profile, python_of(build.base)), sources.wheels)
    requirements = pinned(job.requirements, torch.torch)
    words = {"base": build.base, "torch_index": torch.url or ""}
    text = _fill(sources.template, {**words, "digest": "@digest@"})
    digest = hashlib.sha256(json.dumps([text, *requirements]).encode()).hexdigest()
    return Image(
        name=f"launcher/{_repository(profile.name)}:{digest[:12]}",
        dockerfile=_fill(sources.template, {**words, "digest": digest}),
        requirements=requirements,
        torch=expected_torch(requirements, torch),
    )


def torch_for(requirements: Iterable[str], place: TorchTarget, table: WheelTable) -> TorchChoice:
    """Return the torch for a card that a job's requirements allow. Raises RefusedError."""
    torches = [one for one in map(Requirement, requirements) if _is_torch_there(one)]
    wanted = [str(one.specifier) for one in torches if one.url is None and str(one.specifier)]
    return choose(table, place, SpecifierSet(",".join(wanted)))


def expected_torch(requirements: Collection[str], chosen: TorchChoice) -> str | None:
    """Return the torch that the packages must contain, e.g. `2.13.0+cu126`; None without packages or if torch has a URL."""
    has_own = any(package_of(one) == "torch" and Requirement(one).url is not None for one in requirements)
    if not requirements or has_own:
        return None
    return f"{chosen.torch}+{chosen.build}" if chosen.build is not None else chosen.torch


def _is_torch_there(wanted: Requirement) -> bool:
    """Whether a requirement is torch and its marker matches Linux. Other parts of a marker cannot be evaluated."""
    if normalized(wanted.name) != "torch":
        return False
    return wanted.marker is None or wanted.marker.evaluate(_LINUX)


def python_of(base: str) -> tuple[int, int] | None:
    """Return the Python of a base image if its name contains it, e.g. (3, 12) for `python:3.12-slim-bookworm`."""
    found = re.search(r"(?:^|/)python:([0-9]+)\.([0-9]+)\b", base)
    return (int(found[1]), int(found[2])) if found else None


def pinned(requirements: Iterable[str], torch: str) -> tuple[str, ...]:
    """Return the packages that an image or an environment installs: torch in this version first, the rest by name.

    A job that needs any package gets torch too, because another package might install a build for another
    card.
    """
    wanted = [_with_one_torch(written, torch) for written in requirements]
    if wanted and not any(_is_torch_there(Requirement(one)) for one in wanted):
        wanted.append(f"torch=={torch}")
    return tuple(sorted(set(wanted), key=lambda one: (not _is_torch(one), package_of(one), one)))


def context(image: Image) -> dict[str, bytes]:
    """Return the files from which one of launcher's images is built.

    Raises ValueError for the user's own image.
    """
    if image.dockerfile is None:
        raise ValueError(f"{image.name} is the user's own image: it is not built")
    return {"Dockerfile": image.dockerfile.encode(), **requirement_files(image.requirements)}


def requirement_files(requirements: Iterable[str]) -> dict[str, bytes]:
    """Return the two requirements files, in installation order: torch with torchvision and torchaudio; the rest."""
    lines = list(requirements)
    return {
        "torch.txt": _lines(line for line in lines if _is_torch(line)),
        "requirements.txt": _lines(line for line in lines if not _is_torch(line)),
    }


def _with_one_torch(written: str, torch: str) -> str:
    wanted = Requirement(written)
    if normalized(wanted.name) != "torch" or wanted.url is not None or _is_exact(wanted.specifier):
        return written
    wanted.specifier = SpecifierSet(f"=={torch}")
    return str(wanted)


def _is_exact(specifier: SpecifierSet) -> bool:
    return any(one.operator in ("==", "===") and not one.version.endswith(".*") for one in specifier)


def _is_torch(requirement: str) -> bool:
    return package_of(requirement) in _TORCH_AND_KIN


def _lines(requirements: Iterable[str]) -> bytes:
    return "".join(f"{one}\n" for one in requirements).encode()


def _repository(profile: str) -> str:
    """Return a profile's name in the form that image names allow: single separators, none at the end."""
    return re.sub(r"([._-])[._-]*", r"\1", profile).rstrip("._-")


def _fill(template: str, words: dict[str, str]) -> str:
    if not re.search(r"(?mi)^FROM\s", template):
        raise BadFileError("images/Dockerfile: has no FROM line")

    def word(found: re.Match[str]) -> str:
        if found[1] not in words:
            raise BadFileError(f"images/Dockerfile: unknown word @{found[1]}@\n  known: {', '.join(words)}")
        return words[found[1]]

    return re.sub(r"@([a-z_]+)@", word, template)
