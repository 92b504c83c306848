"""The environment of a native plan, from profile, job and what the host has: made from the same table as images."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator

from launcher.errors import RefusedError
from launcher.planning.image_plan import expected_torch, pinned, requirement_files, torch_for
from launcher.planning.recipe import pip_options
from launcher.planning.wheel_choice import TorchChoice, site
from launcher.values.environment import Environment, Maker
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.image import BuildOptions
from launcher.values.job import Job
from launcher.values.profile import Profile
from launcher.values.wheels import WheelTable

UV_PYTHONS = ("3.12", "3.11", "3.13", "3.10", "3.14", "3.9")
"""What uv is asked to bring where no Python of the host fits, the image's own first."""
_UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
}
"""uv does not read pip's settings, and fetches pip by its own."""


def environment(
    profile: Profile, job: Job, host: Host, facts: Facts, table: WheelTable
) -> Environment | None:
    """Return the environment that a native job gets; None where it needs none of ours, or where none can be made.

    It needs none without requirements, where the host names an `environment`, and where the host's own Python has all of them.
    The torch is the one that the card would get whatever the Python, if a Python for it can be had; else the best for
    one that can. Raises RefusedError for a torch that the card cannot run.
    """
    interpreter = facts.interpreter
    if not job.requirements or host.environment is not None or interpreter is None:
        return None
    if None not in interpreter.packages.values():
        return None
    place = site(facts).with_card(profile)
    wanted = torch_for(job.requirements, place, table)
    found: list[tuple[str, TorchChoice]] = []
    for maker in makers(facts):
        with contextlib.suppress(RefusedError):  # no torch that will do has wheels for this Python
            there = place._replace(python=(3, int(maker.python.removeprefix("3."))))
            found.append((maker.python, torch_for(job.requirements, there, table)))
    if not found:
        return None
    python, torch = next((one for one in found if one[1].torch == wanted.torch), found[0])
    return _environment(job, python, torch)


def _environment(job: Job, python: str, torch: TorchChoice) -> Environment:
    requirements = pinned(job.requirements, torch.torch)
    digest = hashlib.sha256(json.dumps([python, torch.url, *requirements]).encode()).hexdigest()
    return Environment(
        name=digest[:12],
        python=python,
        requirements=requirements,
        torch=expected_torch(requirements, torch),
        torch_index=torch.url,
    )


def makers(facts: Facts) -> Iterator[Maker]:
    """Yield what can make an environment on a host, best first: venv by its own Python, by another, then uv.

    uv takes a Python that is there before it brings one.
    """
    own = facts.interpreter
    there = [(one.path, one.version, one.has_ensurepip) for one in (own, *(facts.pythons or ())) if one]
    known = [(path, found[0], has) for path, version, has in there if (found := _MINOR.match(version or ""))]
    for path, minor, has_ensurepip in known:
        if has_ensurepip:
            yield Maker("venv", path, minor, path)
    if facts.uv is not None:
        for path, minor, _ in known:
            yield Maker("uv", facts.uv.path, minor, path)
        for minor in UV_PYTHONS:
            yield Maker("uv", facts.uv.path, minor, minor)


_MINOR = re.compile(r"3\.[0-9]{1,2}(?=\.|$)")


def maker_of(environment: Environment, facts: Facts) -> Maker | None:
    """Return what makes an environment on a host; None where nothing there can."""
    return next((one for one in makers(facts) if one.python == environment.python), None)


def environment_files(
    environment: Environment, settings: BuildOptions
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return what the making of an environment is handed, by name: its requirements, and what may be secret."""
    given = {"pip_conf": (settings.pip_conf or "").encode(), "ca_bundle": settings.ca_bundle or b""}
    return requirement_files(environment.requirements), {key: one for key, one in given.items() if one}


def build_variables(settings: BuildOptions) -> dict[str, str]:
    """Return the variables that the making of an environment is given: proxies, and pip's settings as uv reads them."""
    options = pip_options(settings.pip_conf or "")
    told = {_UV_NAMES[key]: " ".join(value.split()) for key, value in options.items() if key in _UV_NAMES}
    if "UV_FIND_LINKS" in told:
        told["UV_FIND_LINKS"] = told["UV_FIND_LINKS"].replace(" ", ",")
    return {**settings.proxies, **told}


def has_no_index(settings: BuildOptions) -> bool:
    """Whether pip's settings forbid every index; uv has no variable for that."""
    return pip_options(settings.pip_conf or "").get("no-index", "").lower() in ("1", "true", "yes", "on")
