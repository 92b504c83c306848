"""The image of a plan, from profile, job and host: the same inputs give the same bytes, and so the same name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from launcher.errors import BadFileError, RefusedError
from launcher.planning.wheel_choice import UNKNOWN, Site, TorchChoice, TorchTarget, choose
from launcher.values.image import Build, Image
from launcher.values.job import Job
from launcher.values.profile import Profile
from launcher.values.wheels import WheelTable

_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
_TORCH_AND_KIN = {"torch", "torchvision", "torchaudio"}
"""What is built for one CUDA together, and comes from one index."""


class Sources(NamedTuple):
    """What images are made from: the template of the Dockerfile, and the table of torch's builds."""

    template: str
    wheels: WheelTable


def image(profile: Profile, job: Job, build: Build, sources: Sources | None, site: Site = UNKNOWN) -> Image:
    """Return the image that a job runs in on a card. Its name changes with its content alone, never with settings.

    `site` is what is known of its host; an image of the job's own needs no sources. Raises RefusedError for Apple's GPU and for a torch that the card cannot
    run, BadFileError for a template that is none.
    """
    if profile.kind == "mps":
        raise RefusedError(
            "no container sees an Apple GPU: macOS gives it to its own processes alone\n"
            "  run it natively   launch --runtime native"
        )
    if job.image is not None:
        return Image(name=job.image, dockerfile=None, requirements=())
    if sources is None:
        raise ValueError("this image is made, and nothing was given to make it from")
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
    """Return the torch that packages are to have, e.g. `2.13.0+cu126`; None where they have none, or one behind a URL."""
    has_own = any(_name(one) == "torch" and Requirement(one).url is not None for one in requirements)
    if not requirements or has_own:
        return None
    return f"{chosen.torch}+{chosen.build}" if chosen.build is not None else chosen.torch


def _is_torch_there(wanted: Requirement) -> bool:
    """Whether a requirement is torch, and is one on Linux: where a marker asks for more than that, nobody can say."""
    if canonicalize_name(wanted.name) != "torch":
        return False
    return wanted.marker is None or wanted.marker.evaluate(_LINUX)


def python_of(base: str) -> tuple[int, int] | None:
    """Return the Python of a base, where its name says it, e.g. `python:3.12-slim-bookworm`."""
    found = re.search(r"(?:^|/)python:([0-9]+)\.([0-9]+)\b", base)
    return (int(found[1]), int(found[2])) if found else None


def pinned(requirements: Iterable[str], torch: str) -> tuple[str, ...]:
    """Return what an image, or an environment, installs, in an order that does not depend on the job's: torch, this version of it, first.

    A job that needs any package gets torch too: another package that brought it would bring the build of another card.
    """
    wanted = [_with_one_torch(written, torch) for written in requirements]
    if wanted and not any(_is_torch_there(Requirement(one)) for one in wanted):
        wanted.append(f"torch=={torch}")
    return tuple(sorted(set(wanted), key=lambda one: (not _is_torch(one), _name(one), one)))


def context(image: Image) -> dict[str, bytes]:
    """Return the files that an image of ours is built from.

    Raises ValueError for an image of the user's own.
    """
    if image.dockerfile is None:
        raise ValueError(f"{image.name} is not ours to build")
    return {"Dockerfile": image.dockerfile.encode(), **requirement_files(image.requirements)}


def requirement_files(requirements: Iterable[str]) -> dict[str, bytes]:
    """Return the two files that pip installs from, one after the other: torch and its kin, then the rest."""
    told = list(requirements)
    return {
        "torch.txt": _lines(one for one in told if _is_torch(one)),
        "requirements.txt": _lines(one for one in told if not _is_torch(one)),
    }


def _with_one_torch(written: str, torch: str) -> str:
    wanted = Requirement(written)
    if canonicalize_name(wanted.name) != "torch" or wanted.url is not None or _is_exact(wanted.specifier):
        return written
    wanted.specifier = SpecifierSet(f"=={torch}")
    return str(wanted)


def _is_exact(specifier: SpecifierSet) -> bool:
    return any(one.operator in ("==", "===") and not one.version.endswith(".*") for one in specifier)


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _is_torch(requirement: str) -> bool:
    return _name(requirement) in _TORCH_AND_KIN


def _lines(requirements: Iterable[str]) -> bytes:
    return "".join(f"{one}\n" for one in requirements).encode()


def _repository(profile: str) -> str:
    """Return a profile's name as a part of an image's: its separators are single, and stand between."""
    return re.sub(r"([._-])[._-]*", r"\1", profile).rstrip("._-")


def _fill(template: str, words: dict[str, str]) -> str:
    if not re.search(r"(?mi)^FROM\s", template):
        raise BadFileError("images/Dockerfile: has no FROM line")

    def word(found: re.Match[str]) -> str:
        if found[1] not in words:
            raise BadFileError(f"images/Dockerfile: unknown word @{found[1]}@\n  known: {', '.join(words)}")
        return words[found[1]]

    return re.sub(r"@([a-z_]+)@", word, template)
