"""Probing: what a host is and has, asked of one host or of many at once, and which profile that means."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.kaggle.kaggle_machines import choose_machine, expected_facts
from launcher.backends.slurm.slurm_job import possible_profiles, with_expected_cards
from launcher.backends.slurm.slurm_job import settings_of as slurm_settings_of
from launcher.base import untrusted_json
from launcher.base.bounded_read import read_bounded
from launcher.base.toml import MOST_BYTES
from launcher.config import resolve
from launcher.copy import index
from launcher.errors import (
    BadFileError,
    HostError,
    LaunchError,
    RefusedError,
    ServiceAuthError,
    UnknownNameError,
)
from launcher.planning.derived_profile import derived
from launcher.planning.placement import (
    as_probed,
    best_card,
    card_choice_reason,
    match_profile,
    requested_gpus,
)
from launcher.planning.precision.quantizer import looked_for
from launcher.planning.script.source import source
from launcher.planning.software.needed_packages import ROUNDING, may_need_more
from launcher.runs.run_desk import connect
from launcher.transport.client.desk import Desk
from launcher.values.facts import Facts
from launcher.values.host import KAGGLE, Host
from launcher.values.job import Job
from launcher.values.kaggle_settings import KaggleSettings
from launcher.values.machine_choice import MachineChoice
from launcher.values.model import CONFIG_KEYS
from launcher.values.parsing import build, unknown_name
from launcher.values.profile import Profile
from launcher.values.reported.cluster import Cluster
from launcher.values.software.requirement import distribution

if TYPE_CHECKING:
    from concurrent.futures import Future

    from launcher.rental.renting import Offer

    OffersByApi = Mapping[str, Future[tuple[Offer, ...]]]

NO_JOB = Job(name="none", command=("true",))
"""A job that needs nothing: a probe for it does not look for other interpreters, which takes time."""
PROBE_VERSION = 1
PROBE_DEADLINE_S = 20.0
MOST_HOSTS_AT_ONCE = 32


def probe(desk: Desk, host: Host, job: Job | None = None, choice: MachineChoice | None = None) -> Facts:
    """Ask a host for its facts, and for the packages and the model of a job; without a job, for its other interpreters.

    Of an account of Kaggle's the facts are what is expected of the chosen machine. Raises HostError, also for a cluster whose
    controller does not answer.
    """
    if host.kaggle is not None:
        return _expected(desk, host, host.kaggle, choice)
    model = source(job.model).model_dump() if job is not None and job.model is not None else None
    packages = None if job is None else _packages(job)
    facts = desk.probe(
        environment=host.environment,
        packages=packages,
        engine=host.engine,
        model=model,
        model_keys=CONFIG_KEYS,
        slurm=host.slurm is not None,
    )
    if host.slurm is not None and (facts.slurm is None or facts.slurm.error is not None):
        raise HostError(host.name, _silence(host.name, facts))
    return facts


def _packages(job: Job) -> list[str]:
    """Return the names of the packages that a job needs, or may need."""
    more = [ROUNDING] if may_need_more(job) else []
    return looked_for(map(distribution, [*job.requirements, *more]), job.method)


def _silence(host: str, facts: Facts) -> str:
    """Say that a cluster's controller does not answer, and what was asked."""
    why = facts.slurm.error if facts.slurm is not None else None
    return (
        f"{host}: {facts.hostname} has no answer of Slurm's: {why or 'its agent did not ask'}\n"
        "  look there   scontrol ping"
    )


def _expected(desk: Desk, host: Host, settings: KaggleSettings, choice: MachineChoice | None) -> Facts:
    """Return what is expected of a machine, with the evidence of earlier runs, which is with the account's spool."""
    machine, profiles, _ = choice or expected_choice(host, settings)
    spool = desk.probe(environment=None, packages=[], engine=None, model=None, model_keys=())
    return expected_facts(spool.host_id, machine, profiles[0], spool.precision_evidence)


def saved_probe(path: Path) -> Facts:
    """Read what `launch probe --json` printed. Raises BadFileError that names file, key and value."""
    mend = "make one   launch probe --json > FILE"
    try:
        values = untrusted_json.decode(read_bounded(path, MOST_BYTES, takes_pipe=True))
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
    for entry in index.entries():
        if entry.host.name in known and entry.host.name not in configured:
            found[entry.host.name] = entry.host
    return dict(sorted(found.items()))


def kaggle_in_use(configured: Mapping[str, Host]) -> dict[str, Host]:
    """Return the account of Kaggle's that needs no table, if there are credentials and no other host has its name."""
    from launcher.backends.kaggle.kaggle_credentials import has_credentials

    is_free = KAGGLE.name not in configured and KAGGLE.name not in resolve.aliases()
    has_table = any(host.kaggle is not None for host in configured.values())
    return {KAGGLE.name: KAGGLE} if is_free and not has_table and has_credentials() else {}


class Probed(NamedTuple):
    """What one of several hosts answered: its facts and the profile of its best card, or why not.

    The facts of an account are expectations. `quota` are the hours of one of Kaggle's in words, or the price of what one
    would rent, or what is free in a cluster.
    """

    host: Host
    facts: Facts | None = None
    profile: str | None = None
    problem: str | None = None
    quota: str | None = None


def probe_all(hosts: Sequence[Host], deadline_s: float = PROBE_DEADLINE_S) -> Iterator[Probed]:
    """Probe hosts, many at once; yield each as it answers, at most `deadline_s` seconds after it was asked.

    A host that hangs is given up together with its thread, and delays no other host.
    """
    answers: queue.SimpleQueue[Probed] = queue.SimpleQueue()
    offered = _ask_for_offers(hosts)
    waiting = list(reversed(hosts))
    asked: dict[str, tuple[float, Host]] = {}
    while waiting or asked:
        while waiting and len(asked) < MOST_HOSTS_AT_ONCE:
            host = waiting.pop()
            asked[host.name] = (time.monotonic() + deadline_s, host)
            threading.Thread(
                target=lambda host: answers.put(_probe_alone(host, offered)), args=(host,), daemon=True
            ).start()
        next_deadline, slowest = min(asked.values(), key=lambda pair: pair[0])
        try:
            probed = answers.get(timeout=max(0.0, next_deadline - time.monotonic()))
        except queue.Empty:
            probed = Probed(slowest, problem=f"{slowest.name}: no answer within {deadline_s:g} s")
        if asked.pop(probed.host.name, None):  # otherwise it answered after it was given up
            yield probed


def _ask_for_offers(hosts: Sequence[Host]) -> OffersByApi:
    """Ask each account of some hosts for its offers: once, however many hosts are of it."""
    from concurrent.futures import Future  # few hosts rent

    accounts = {host.lambda_cloud.api: host for host in hosts if host.lambda_cloud is not None}
    answers: dict[str, Future[tuple[Offer, ...]]] = {api: Future() for api in accounts}
    for api, host in accounts.items():
        threading.Thread(target=_answer_offers, args=(host, answers[api]), daemon=True).start()
    return answers


def _answer_offers(host: Host, answer: Future[tuple[Offer, ...]]) -> None:
    from launcher.runs.rented.rental_choice import offers  # few hosts rent

    try:
        answer.set_result(offers(host))
    except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
        answer.set_exception(error)


def _probe_alone(host: Host, offered: OffersByApi) -> Probed:
    facts: Facts | None = None
    try:
        if host.kaggle is not None:
            return _probe_account(host, host.kaggle)
        if host.lambda_cloud is not None:
            return _probe_offers(host, offered[host.lambda_cloud.api].result())
        with connect(host) as desk:
            facts = probe(desk, host, NO_JOB)
        if facts.slurm is not None:
            return _probed_cluster(host, facts, facts.slurm)
        return Probed(host, facts, match_profile(facts, resolve.profiles().values()).name)
    except LaunchError as error:
        words = str(error).splitlines()
        if isinstance(error, ServiceAuthError):  # its mend is short, and the same for every verb
            words = [f"{words[0]}: {' '.join(words[1:]).strip()}" if words[1:] else words[0]]
        return Probed(host, facts, problem=words[0])


def _probed_cluster(host: Host, facts: Facts, cluster: Cluster) -> Probed:
    """Return what a cluster answered, with the cards that a job gets there by the host's table, if that is clear."""
    words = cluster_words(cluster)
    try:
        there = cards_there(host, NO_JOB, profiles_named(host), None, facts)
    except (RefusedError, UnknownNameError):
        return Probed(host, facts, None, quota=words)
    return Probed(host, there.facts, there.profile.name, quota=words)


def profiles_named(host: Host) -> Sequence[Profile]:
    """Return the profiles that a host's table names; none if it leaves the card to the probe."""
    return resolve.profiles_meant(host.profile) if host.profile not in (None, "auto") else ()


def _probe_account(host: Host, settings: KaggleSettings) -> Probed:
    """Ask for an account's hours; its spool is not needed for that. Raises LaunchError."""
    from launcher.backends.kaggle.kaggle_service import account_hours  # few hosts are accounts

    choice = expected_choice(host, settings)
    user, quota = account_hours(settings.api)
    facts = expected_facts(f"kaggle-{user}", choice.machine, choice.profiles[0])
    return Probed(host, facts, choice.profiles[0].name, quota=quota.title)


def _probe_offers(host: Host, offered: tuple[Offer, ...]) -> Probed:
    """Return what is expected of what would be rented of an account's offers. Raises LaunchError."""
    from launcher.runs.rented.rental_choice import choose, expected  # few hosts rent

    named = resolve.profiles_meant(host.profile) if host.profile is not None else ()
    choice = choose(host, named, None, NO_JOB, offered)
    return Probed(host, expected(host, choice), choice.first.profile.name, quota=choice.offer_words)


def expected_choice(host: Host, settings: KaggleSettings) -> MachineChoice:
    """Return the machine that an account's table asks for. Raises RefusedError, UnknownNameError."""
    named = resolve.profiles_meant(host.profile) if host.profile is not None else ()
    return choose_machine(host.name, settings, named, resolve.profiles())


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


class CardsThere(NamedTuple):
    """The facts of a host for a plan, the profile of the cards that it gets there, and why, if there was a choice.

    Of a cluster they are those of its login node with the cards that are expected on another.
    """

    facts: Facts
    profile: Profile
    why: str = ""


def cards_there(
    host: Host, job: Job, named: Sequence[Profile], gpus: str | None, facts: Facts, *, rehearses: bool = False
) -> CardsThere:
    """Return the cards for a job on a host, by what a probe of it found; `gpus` is the value of --gpus.

    Raises UnknownNameError, or RefusedError on a cluster, for cards that no profile names.
    """
    settings = slurm_settings_of(host, job)
    if settings is None:
        _, uuids = requested_gpus(gpus, 1)
        chosen = [gpu for gpu in facts.gpus if gpu.uuid in uuids]
        profile, why = choose_profile(named, facts.model_copy(update={"gpus": chosen}) if chosen else facts)
        return CardsThere(facts, as_probed(profile, facts, uuids), why)
    profile, *others = possible_profiles(host.name, settings, named, gpus, facts.slurm, resolve.profiles())
    why = f"or {', '.join(other.title for other in others)}" if others else ""
    return CardsThere(with_expected_cards(facts, None if rehearses else profile), profile, why)


def profile_there(host: Host, name: str | None) -> Profile:
    """Return the profile of a host's best card, or the one of this name, with the memory that a plan there counts on.

    Raises HostError, or UnknownNameError for a name that is neither known nor derived there.
    """
    with connect(host) as desk:
        facts = probe(desk, host, NO_JOB)
    known = resolve.profiles()
    there = {**known, **{one.name: one for one in derived(facts, known.values())}}
    if name is not None and name not in there:
        raise unknown_name("profile", name, there, looked_in=f"all profiles, and the cards of {host.name}")
    named = profiles_named(host) if name is None else (there[name],)
    return cards_there(host, NO_JOB, named, None, facts).profile


def cluster_title(cluster: Cluster) -> str:
    """Return a cluster's name and version."""
    return f"cluster {cluster.name or 'without a name'} (Slurm {cluster.version or 'of unknown version'})"


def cluster_words(cluster: Cluster) -> str:
    """Return what a cluster has and what is free in it, and what the user has there, for one row."""
    default = next((one for one in cluster.partitions if one.is_default), None)
    words = [cluster_title(cluster)]
    if default is not None:
        idle = sum(alike.idle for alike in default.nodes)
        words.append(f"{idle} of {default.size} nodes idle in {default.name}")
    if others := [one.name for one in cluster.partitions if one is not default]:
        shown = ", ".join(others[:4]) + (f", +{len(others) - 4}" if len(others) > 4 else "")
        words.append(f"also {shown}")
    if cluster.running or cluster.queued:
        words.append(f"yours: {cluster.running or 0} running, {cluster.queued or 0} waiting")
    return ", ".join(words)


def describe(facts: Facts) -> str:
    """Return a host's facts in one line."""
    if facts.slurm is not None:
        card = f"{cluster_title(facts.slurm)}, {facts.cards or 'no card'} expected"
    elif facts.gpus:
        driver = facts.gpus[0].driver
        card = facts.cards_with_held + (f", driver {driver}" if driver else "")
    else:
        card = "Apple GPU" if facts.has_apple_gpu else f"{facts.no_card}, {facts.cpus} CPUs"
    version = facts.interpreter.version if facts.interpreter else None
    python = f"Python {version}" if version else "no Python"
    engines = [
        f"{engine.name.title()} {engine.version}"
        for engine in facts.engines
        if engine.version and not engine.error
    ]
    return ", ".join([card, python, *engines, facts.room_title])
