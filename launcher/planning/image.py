"""The image of a plan, from profile, job and host: the same inputs give the same bytes, and so the same name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from launcher.errors import BadFileError, RefusedError
from launcher.spec.image import Build, Image
from launcher.spec.job import Job
from launcher.spec.profile import Profile

TORCH = "2.13.0"
"""The version of torch where a job leaves it open: that of constraints.txt, with which everything is tested."""

_TORCH_AND_KIN = {"torch", "torchvision", "torchaudio"}
"""What is built for one CUDA together, and comes from one index."""


class Wheels(NamedTuple):
    """Torch's build for a card: the URL of the index that holds it, and why it is this one."""

    url: str
    why: str


def torch_wheels(profile: Profile) -> Wheels:
    """Return torch's build for a card whose driver is not known. A first version, for the torch that we pin.

    Source: the architectures of torch 2.13's wheels, and NVIDIA's minor-version compatibility (CUDA 12.x loads from
    driver 525.60.13 on, 13.x from 580.65.06 on).
    """
    if profile.compute is None:
        return Wheels(_index("cpu"), "a CPU's build, without CUDA's libraries")
    if profile.compute >= (10, 0):
        return Wheels(_index("cu130"), f"CUDA 12.6 has nothing for capability {profile.capability}")
    return Wheels(
        _index("cu126"), f"holds capability {profile.capability}, and loads from driver 525.60.13 on"
    )


def image(profile: Profile, job: Job, build: Build, template: str) -> Image:
    """Return the image that a job runs in on a card. Its name changes with its content alone, never with settings.

    Raises RefusedError for Apple's GPU and for a torch that is not one version, BadFileError for a template that is
    none.
    """
    if profile.kind == "mps":
        raise RefusedError(
            "no container sees an Apple GPU: macOS gives it to its own processes alone\n"
            "  run it natively   launch --runtime native"
        )
    if job.image is not None:
        return Image(name=job.image, dockerfile=None, requirements=())
    requirements = pinned(job.requirements)
    words = {"base": build.base, "torch_index": torch_wheels(profile).url}
    text = _fill(template, {**words, "digest": "@digest@"})
    digest = hashlib.sha256(json.dumps([text, *requirements]).encode()).hexdigest()
    return Image(
        name=f"launcher/{_repository(profile.name)}:{digest[:12]}",
        dockerfile=_fill(template, {**words, "digest": digest}),
        requirements=requirements,
    )


def pinned(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return what an image installs, in an order that does not depend on the job's: torch, one version of it, first.

    A job that needs any package gets torch too: another package that brought it would bring the build of another card.
    Raises RefusedError for a range of torch that excludes ours.
    """
    wanted = [_with_one_torch(written) for written in requirements]
    if wanted and not any(_name(one) == "torch" for one in wanted):
        wanted.append(f"torch=={TORCH}")
    return tuple(sorted(set(wanted), key=lambda one: (not _is_torch(one), _name(one), one)))


def context(image: Image) -> dict[str, bytes]:
    """Return the files that an image of ours is built from.

    Raises ValueError for an image of the user's own.
    """
    if image.dockerfile is None:
        raise ValueError(f"{image.name} is not ours to build")
    torch = [one for one in image.requirements if _is_torch(one)]
    others = [one for one in image.requirements if not _is_torch(one)]
    return {
        "Dockerfile": image.dockerfile.encode(),
        "torch.txt": _lines(torch),
        "requirements.txt": _lines(others),
    }


def _index(build: str) -> str:
    return f"https://download.pytorch.org/whl/{build}"


def _with_one_torch(written: str) -> str:
    wanted = Requirement(written)
    if canonicalize_name(wanted.name) != "torch" or wanted.url is not None or _is_exact(wanted.specifier):
        return written
    if TORCH not in wanted.specifier:
        raise RefusedError(
            f"requirement '{written}': an image holds one version of torch, and ours is {TORCH}\n"
            '  name yours in the job   requirements = ["torch==VERSION", …]'
        )
    wanted.specifier = SpecifierSet(f"=={TORCH}")
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
