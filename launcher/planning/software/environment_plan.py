"""The environment of a native plan, from profile, job and host facts. It uses the same torch table as images."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator

from packaging.version import Version

from launcher.errors import RefusedError
from launcher.planning.software.image_plan import expected_torch, pinned, requirement_files, torch_for
from launcher.planning.software.installed_packages import unmet
from launcher.planning.software.recipe import pip_options
from launcher.planning.software.wheel_choice import TorchChoice, site
from launcher.planning.software.wheels import WheelTable
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.profile import Profile
from launcher.values.software.environment import Environment, EnvironmentBuilder
from launcher.values.software.image import BuildOptions

UV_PYTHONS = ("3.12", "3.11", "3.13", "3.10", "3.14", "3.9")
"""The Pythons that uv may install if no Python on the host fits; the image's version is first."""
OLDEST_UV = Version("0.6")
"""The oldest uv that is used. Like pip, it accepts `2.13.0+cu126` for `==2.13.0`; it reads the variables of `_UV_NAMES`."""
_HARMLESS_SETTINGS = (
    "no-index", "timeout", "retries", "disable-pip-version-check", "no-cache-dir", "progress-bar", "no-color", "no-input",
    "root-user-action", "break-system-packages", "user",
)  # fmt: skip
"""pip's settings that reach uv in another way, or that have no effect in an environment."""
_UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
}
"""uv's variables for pip's settings, because uv does not read those settings."""


def environment(
    profile: Profile, job: Job, host: Host, facts: Facts, table: WheelTable
) -> Environment | None:
    """Return the environment to create for a native job; None if it needs none, or if the host cannot create one.

    A job needs none if it has no requirements, if the host sets an `environment`, or if the host's own Python
    meets all of them. The torch is the best one for the card, if the host can create an environment with a
    Python that this torch supports. Otherwise it is the best torch for the first usable Python. Raises
    RefusedError for a torch that the card cannot run.
    """
    interpreter = facts.interpreter
    if not job.requirements or host.environment is not None or interpreter is None:
        return None
    if not any(unmet(job.requirements, facts)):
        return None
    place = site(facts).with_card(profile)
    wanted = torch_for(job.requirements, place, table)
    found: list[tuple[str, TorchChoice]] = []
    for maker in makers(facts):
        with contextlib.suppress(RefusedError):  # no suitable torch has wheels for this Python
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


def makers(facts: Facts) -> Iterator[EnvironmentBuilder]:
    """Yield the tools to make an environment on a host, best first: its own Python's venv, another Python's, uv.

    uv uses an installed Python before it installs one.
    """
    own = facts.interpreter
    there = [(one.path, one.version, one.has_ensurepip) for one in (own, *(facts.pythons or ())) if one]
    known = [(path, found[0], has) for path, version, has in there if (found := _MINOR.match(version or ""))]
    for path, minor, has_ensurepip in known:
        if has_ensurepip:
            yield EnvironmentBuilder("venv", path, minor, path)
    if facts.uv is not None:
        for path, minor, _ in known:
            yield EnvironmentBuilder("uv", facts.uv.path, minor, path)
        for minor in UV_PYTHONS:
            yield EnvironmentBuilder("uv", facts.uv.path, minor, minor)


_MINOR = re.compile(r"3\.[0-9]{1,2}(?=\.|$)")


def maker_of(environment: Environment, facts: Facts, settings: BuildOptions) -> EnvironmentBuilder | None:
    """Return the tool to make an environment on a host; None if the host has no suitable one."""
    found = next((one for one in makers(facts) if one.python == environment.python), None)
    if found is None or facts.uv is None or not _uv_can_fill(facts.uv.version or "", settings):
        return found
    return found._replace(uv=facts.uv.path)


def _uv_can_fill(version: str, settings: BuildOptions) -> bool:
    """Whether uv is recent enough and understands all of pip's settings."""
    found = re.search(r"[0-9]+\.[0-9]+", version)
    is_recent = found is not None and Version(found[0]) >= OLDEST_UV
    known = {*_UV_NAMES, *_HARMLESS_SETTINGS, *(["cert"] if settings.ca_bundle is not None else [])}
    return is_recent and pip_options(settings.pip_conf or "").keys() <= known


def environment_files(
    environment: Environment, settings: BuildOptions
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the requirement files of an environment, and the files that may be secret: pip_conf and ca_bundle."""
    given = {"pip_conf": (settings.pip_conf or "").encode(), "ca_bundle": settings.ca_bundle or b""}
    return requirement_files(environment.requirements), {key: one for key, one in given.items() if one}


def build_variables(settings: BuildOptions) -> dict[str, str]:
    """Return the variables to create an environment: proxies, and pip's settings under uv's names."""
    options = pip_options(settings.pip_conf or "")
    uv_variables = {
        _UV_NAMES[key]: " ".join(value.split()) for key, value in options.items() if key in _UV_NAMES
    }
    if "UV_FIND_LINKS" in uv_variables:
        uv_variables["UV_FIND_LINKS"] = uv_variables["UV_FIND_LINKS"].replace(" ", ",")
    return {**settings.proxies, **uv_variables}


def has_no_index(settings: BuildOptions) -> bool:
    """Return whether pip's settings forbid every index; uv has no variable for that."""
    return pip_options(settings.pip_conf or "").get("no-index", "").lower() in ("1", "true", "yes", "on")
