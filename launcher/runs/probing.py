"""Probing: what a host is and has, asked of one host or of many at once, and which profile that means."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.errors import BadFileError, LaunchError, RunError
from launcher.hosts import Desk
from launcher.planning import best_card, card_choice_reason, distribution, match_profile, source
from launcher.runs import resolve
from launcher.runs.mirror import mirrors
from launcher.runs.run_desk import connect
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.model import CONFIG_KEYS
from launcher.values.parsing import build
from launcher.values.profile import Profile

NO_JOB = Job(name="none", command=("true",))
"""A job that needs nothing: a probe for it does not look for other interpreters, which takes time."""
PROBE_VERSION = 1
PROBE_DEADLINE_S = 20.0
MOST_HOSTS_AT_ONCE = 32


def probe(desk: Desk, host: Host, job: Job | None = None) -> Facts:
    """Ask a host for its facts, and for the packages and the model of a job; without a job, for its other interpreters.

    Raises HostError.
    """
    model = source(job.model).model_dump() if job is not None and job.model is not None else None
    return desk.probe(
        environment=host.environment,
        packages=None if job is None else [distribution(requirement) for requirement in job.requirements],
        engine=host.engine,
        model=model,
        model_keys=CONFIG_KEYS,
    )


def saved_probe(path: Path) -> Facts:
    """Read what `launch probe --json` printed. Raises BadFileError that names file, key and value."""
    mend = "make one   launch probe --json > FILE"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
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
    """Return the aliases of ssh's configuration that runs of this client are on, without the configured hosts."""
    known = {*resolve.aliases()}
    found: dict[str, Host] = {}
    for mirror in mirrors():
        with contextlib.suppress(RunError):
            host = mirror.host()
            if host.name in known and host.name not in configured:
                found[host.name] = host
    return dict(sorted(found.items()))


class Probed(NamedTuple):
    """What one of several hosts answered: its facts and the profile of its best card, or why not."""

    host: Host
    facts: Facts | None = None
    profile: str | None = None
    problem: str | None = None


def probe_all(hosts: Sequence[Host], deadline_s: float = PROBE_DEADLINE_S) -> Iterator[Probed]:
    """Probe hosts, many at once; yield each as it answers, at most `deadline_s` seconds after it was asked.

    A host that hangs is given up together with its thread, and delays no other host.
    """
    answers: queue.SimpleQueue[Probed] = queue.SimpleQueue()
    waiting = list(reversed(hosts))
    asked: dict[str, tuple[float, Host]] = {}
    while waiting or asked:
        while waiting and len(asked) < MOST_HOSTS_AT_ONCE:
            host = waiting.pop()
            asked[host.name] = (time.monotonic() + deadline_s, host)
            threading.Thread(
                target=lambda host: answers.put(_probe_alone(host)), args=(host,), daemon=True
            ).start()
        next_deadline, slowest = min(asked.values(), key=lambda pair: pair[0])
        try:
            probed = answers.get(timeout=max(0.0, next_deadline - time.monotonic()))
        except queue.Empty:
            probed = Probed(slowest, problem=f"{slowest.name}: no answer within {deadline_s:g} s")
        if asked.pop(probed.host.name, None):  # otherwise it answered after it was given up
            yield probed


def _probe_alone(host: Host) -> Probed:
    facts: Facts | None = None
    try:
        with connect(host) as desk:
            facts = probe(desk, host, NO_JOB)
        return Probed(host, facts, match_profile(facts, resolve.profiles().values()).name)
    except LaunchError as error:
        return Probed(host, facts, problem=str(error).splitlines()[0])


def choose_profile(profiles: Sequence[Profile], facts: Facts) -> tuple[Profile, str]:
    """Return the profile that fits a probe, and why, if there was a choice between cards.

    It is one of `profiles`, or of all profiles if it is empty. If the host has none of the named cards it is the
    first, which the gate then refuses. Raises UnknownNameError for cards that no profile names.
    """
    if len(profiles) == 1:
        return profiles[0], ""
    best = best_card(facts, profiles)
    if profiles and best is None:
        return profiles[0], ""
    profile = best[0] if best else match_profile(facts, resolve.profiles().values())
    return profile, card_choice_reason(profile, facts)


def describe(facts: Facts) -> str:
    """Return a host's facts in one line."""
    if facts.gpus:
        card = f"{facts.cards_with_held}, driver {facts.gpus[0].driver}"
    else:
        card = "Apple GPU" if facts.has_apple_gpu else f"no GPU, {facts.cpus} CPUs"
    version = facts.interpreter.version if facts.interpreter else None
    python = f"Python {version}" if version else "no Python"
    engines = [
        f"{engine.name.title()} {engine.version}"
        for engine in facts.engines
        if engine.version and not engine.error
    ]
    return ", ".join([card, python, *engines, facts.room_title])
