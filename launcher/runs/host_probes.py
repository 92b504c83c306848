"""Probe many hosts at once, read a saved probe, and find the profile of a host's card."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.backends.base.probing import NO_JOB, CardRequest, Probed, profiles_named
from launcher.backends.registry import backend_of
from launcher.base import untrusted_json
from launcher.base.bounded_read import read_bounded
from launcher.base.toml import MAX_BYTES
from launcher.config.lookup import Lookup, implicit_host, implicit_names
from launcher.copy import index
from launcher.errors import BadFileError, LaunchError, ServiceAuthError, UnreachableError
from launcher.planning.derived_profile import derived
from launcher.runs.run_client import connect
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.parsing import build, unknown_name

if TYPE_CHECKING:
    from launcher.backends.base.probing import Probing
    from launcher.values.job import Job
    from launcher.values.profile import Profile

PROBE_VERSION = 1
PROBE_DEADLINE_S = 20.0
MAX_HOSTS_AT_ONCE = 32


def saved_probe(path: Path) -> Facts:
    """Read the output of `launch probe --json`. Raises BadFileError that names file, key and value."""
    mend = "make one   launch probe --json > FILE"
    try:
        values = untrusted_json.decode(read_bounded(path, MAX_BYTES, takes_pipe=True))
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadFileError(f"{path}: is not JSON: {error}\n  {mend}") from error
    if not isinstance(values, dict):
        raise BadFileError(f"{path}: is not a probe\n  {mend}")
    if values.get("version") != PROBE_VERSION:
        shown = json.dumps(values.get("version"))[:60]
        raise BadFileError(f"{path}: version = {shown}: expected {PROBE_VERSION}\n  {mend}")
    return build(Facts, values, file=str(path))


def aliases_in_use(configured: Container[str]) -> dict[str, Host]:
    """Return the hosts of this client's runs that are ssh aliases, without the configured hosts."""
    known = {*Lookup().aliases}
    found: dict[str, Host] = {}
    for entry in index.entries():
        if entry.host.name in known and entry.host.name not in configured:
            found[entry.host.name] = entry.host
    return dict(sorted(found.items()))


def accounts_in_use(configured: Mapping[str, Host]) -> dict[str, Host]:
    """Return the hosts that need no table and have credentials, except those with a configured host's name or kind."""
    taken, kinds = {*configured, *Lookup().aliases}, {host.kind for host in configured.values()}
    hosts = (implicit_host(name) for name in implicit_names() if name not in {*taken, *kinds})
    return {host.name: host for host in hosts if host is not None and backend_of(host).probing.is_usable()}


def known_hosts(lookup: Lookup) -> dict[str, Host]:
    """Return the configured hosts, the aliases with a run of this client, and the accounts with credentials."""
    found = lookup.hosts
    found |= aliases_in_use(found)
    return found | accounts_in_use(found)


def probe_all(
    hosts: Sequence[Host], deadline_s: float = PROBE_DEADLINE_S, job: Job | None = NO_JOB
) -> Iterator[Probed]:
    """Probe hosts, many at once; yield each when it answers, at most `deadline_s` seconds after it was asked.

    A host that hangs is given up together with its thread, and delays no other host. `job` is as in
    `Probing.probe`.
    """
    answers: queue.SimpleQueue[Probed] = queue.SimpleQueue()
    asking, lookup = _asked_ahead(hosts), Lookup()
    waiting = list(reversed(hosts))
    asked: dict[str, tuple[float, Host]] = {}
    while waiting or asked:
        while waiting and len(asked) < MAX_HOSTS_AT_ONCE:
            host = waiting.pop()
            asked[host.name] = (time.monotonic() + deadline_s, host)
            threading.Thread(
                target=lambda host: answers.put(_probe_alone(asking[host.kind], host, lookup, job)),
                args=(host,),
                daemon=True,
            ).start()
        next_deadline, slowest = min(asked.values(), key=lambda pair: pair[0])
        try:
            probed = answers.get(timeout=max(0.0, next_deadline - time.monotonic()))
        except queue.Empty:
            silence = f"{slowest.name}: no answer within {deadline_s:g} s"
            probed = Probed(slowest, problem=silence, error=UnreachableError(slowest.name, silence))
        if asked.pop(probed.host.name, None):  # else the host answered after its deadline
            yield probed


def _asked_ahead(hosts: Sequence[Host]) -> dict[str, Probing]:
    """Return the probing of each kind of host, after starting the requests that all hosts of the kind share."""
    asking: dict[str, Probing] = {}
    for kind in dict.fromkeys(host.kind for host in hosts):
        alike = [host for host in hosts if host.kind == kind]
        asking[kind] = backend_of(alike[0]).probing
        asking[kind].ask_ahead(alike)
    return asking


def _probe_alone(probing: Probing, host: Host, lookup: Lookup, job: Job | None) -> Probed:
    facts: Facts | None = None

    def ask() -> Facts:
        nonlocal facts
        with connect(host) as client:
            facts = probing.probe(client, host, job)
        return facts

    try:
        return probing.row(host, ask, lookup)
    except LaunchError as error:
        words = str(error).splitlines()
        if isinstance(error, ServiceAuthError):  # the fix of this error is short, and the same for every verb
            words = [f"{words[0]}: {' '.join(words[1:]).strip()}" if words[1:] else words[0]]
        return Probed(host, facts, problem=words[0], error=error)


def profile_there(host: Host, name: str | None) -> Profile:
    """Return the profile of a host's best card, or the named one, with the memory that a plan for the host assumes.

    Raises HostError, or UnknownNameError for a name that is neither known nor derived from the host's cards.
    """
    probing, lookup = backend_of(host).probing, Lookup()
    with connect(host) as client:
        facts = probing.probe(client, host, NO_JOB)
    known = lookup.profiles
    there = {**known, **{one.name: one for one in derived(facts, known.values())}}
    if name is not None and name not in there:
        raise unknown_name("profile", name, there, looked_in=f"all profiles, and the cards of {host.name}")
    named = profiles_named(host, lookup) if name is None else (there[name],)
    return probing.cards(host, NO_JOB, CardRequest(named), facts, lookup).profile
