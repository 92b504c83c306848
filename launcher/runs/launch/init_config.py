"""The proposal of `launch init` for a host: the lines of a launch.toml and their explanation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from launcher.backends.base.probing import NO_JOB
from launcher.backends.registry import backend_of
from launcher.backends.runtimes import load as load_runtime
from launcher.config.catalogue import user_folder_text
from launcher.config.lookup import Lookup
from launcher.errors import RefusedError, UnknownNameError, UsageError
from launcher.planning.placement import runtime as choose_runtime
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.profile import DERIVED, Profile

NO_NAME = re.compile(r"[^a-z0-9_-]+")
NUMBERS = re.compile(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*")
"""The form of an IPv4 or IPv6 address."""

_CLUSTER = "a login node of a cluster: runs are its jobs, and no first job is run"

A_JOB = NO_JOB.model_copy(update={"requirements": ("torch",)})
"""A job that requires torch, as most jobs do."""


class Proposal(NamedTuple):
    """A project's proposed defaults.

    `profile` is None for a card that no profile names; `lines` explain the defaults to the user.
    `is_login_node`: the host is the login node of a cluster, which runs the jobs on other nodes.
    """

    host: str
    profile: str | None
    runtime: str
    text: str
    lines: tuple[tuple[str, str], ...]
    is_login_node: bool = False


def propose(host: Host, environment: str | None, facts: Facts) -> Proposal:
    """Return the defaults for a host from the facts of its probe.

    Raises UsageError for an environment that does not exist, or that belongs in the user's hosts file.
    """
    is_written = host.name != "local" and host.name in Lookup().written_hosts
    if is_written and environment is not None:
        raise UsageError(
            f"{host.name} is in {user_folder_text()}/hosts.toml\n  set in that file   environment = {json.dumps(environment)}"
        )
    name = host.name if is_written or host.name in ("local", *Lookup().aliases) else _short(host)
    probing = backend_of(host).probing
    if probing.is_unused_login(facts):
        table = _table(name, host, None, environment, kind="slurm")
        runs_in = environment or "jobs of the cluster, which begin on its nodes"
        lines = (("host", name), ("runs in", runs_in), ("slurm", _CLUSTER))
        text = f"host = {json.dumps(name)}\n" + ("" if is_written else table)
        return Proposal(name, None, "slurm", text, lines, is_login_node=True)
    try:
        best = probing.best_cards(host, A_JOB, facts, Lookup())
        found: Profile | None = best.profile
        card = ""
    except (UnknownNameError, RefusedError) as error:
        found, card = None, str(error).splitlines()[0]
    is_written_down = found is not None and found.kind != "cpu" and not found.is_derived
    profile = found.name if found is not None and is_written_down else None
    given = host if environment is None else host.model_copy(update={"environment": environment})
    if environment is not None and (facts.interpreter is None or facts.interpreter.error):
        why = facts.interpreter.error if facts.interpreter else "it has no Python"
        raise UsageError(
            f"--environment {environment}: {why}\n  the host's facts   launch probe --host {host.name}"
        )
    runtime = choose_runtime(found or Lookup().profile("cpu"), given, A_JOB, facts)
    text = f"host = {json.dumps(name)}\n" + ("" if is_written else _table(name, host, profile, environment))
    lines = (
        ("host", name),
        ("profile", _profile_words(found) if found is not None else f"-   {card}"),
        ("runs in", _environment(runtime, environment, facts)),
    )
    return Proposal(name, profile, runtime, text, lines)


def _profile_words(profile: Profile) -> str:
    return f"{profile.name} {DERIVED}" if profile.is_derived else profile.name


def write(path: Path, text: str) -> None:
    """Write a new file. Raises UsageError if it exists, leaving it unchanged, or if it cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already, and was not changed\n  look   launch hosts") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def _short(host: Host) -> str:
    """Return a name for an address: its first part, or all of it if it is numeric."""
    address = (host.address or host.name).lower()
    first = address if NUMBERS.fullmatch(address) else address.partition(".")[0]
    return NO_NAME.sub("-", first).strip("-") or "host"


def _environment(runtime: str, environment: str | None, facts: Facts) -> str:
    if environment is not None and facts.interpreter is not None:
        torch = facts.interpreter.packages.get("torch")
        return f"{environment}   (Python {facts.interpreter.version}, torch {torch or 'is not installed'})"
    if load_runtime(runtime).has_images:
        return f"a container ({runtime}): the image of a job is built there once"
    return (
        "the Python found there if it has what a job requires, else an environment that is made once for it"
    )


def _table(
    name: str, host: Host, profile: str | None, environment: str | None, kind: str | None = None
) -> str:
    """Return the table of a host; without an address for an alias of ssh's configuration and for this machine."""
    is_new = name != host.name
    keys = {
        "kind": kind,
        "address": host.address if is_new else None,
        "user": host.user if is_new else None,
        "port": host.port if is_new else None,
        "profile": profile,
        "environment": environment,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items() if value is not None]
    return "\n".join(["", f"[hosts.{name}]", *lines, ""]) if lines else ""
