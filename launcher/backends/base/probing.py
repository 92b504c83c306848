"""A backend's part before planning: find the cards of a host, probed or expected, and show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from launcher.errors import LaunchError, UsageError
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
from launcher.values.facts import Facts
from launcher.values.job import Job
from launcher.values.model import CONFIG_KEYS
from launcher.values.profile import Profile
from launcher.values.software.requirement import distribution

if TYPE_CHECKING:
    from launcher.config.lookup import Lookup
    from launcher.rental.renting import InstanceOffer
    from launcher.transport.client.host_client import HostClient
    from launcher.values.host import Host
    from launcher.values.plan import MachineChoice, Plan

NO_JOB = Job(name="none", command=("true",))
"""A job without requirements. A probe for it skips the search for other interpreters, which is slow."""


class CardRequest(NamedTuple):
    """The cards that a request asks for: those of one of `profiles`, or any cards if there are no profiles.

    `name` is the name that selected the profiles, `gpus` the value of --gpus. `rehearses`: the cards are only
    simulated. `allows_substitute`: other cards are acceptable.
    """

    profiles: Sequence[Profile] = ()
    name: str = "auto"
    gpus: str | None = None
    rehearses: bool = False
    allows_substitute: bool = False


class HostCards(NamedTuple):
    """A host's facts for a plan, the profile of the job's cards, and the reason for it if there was a choice.

    For a cluster, the facts are those of its login node with the cards expected on a compute node.
    """

    facts: Facts
    profile: Profile
    why: str = ""


class Probed(NamedTuple):
    """The row of one of several hosts: its facts and the profile of its best card, or the problem.

    The facts of an account are expectations. `quota` is text: an account's remaining quota, the machine that
    it would rent, or the free nodes of a cluster. `error` is the problem with its next step; `is_used_up`
    says that the quota has nothing left.
    """

    host: Host
    facts: Facts | None = None
    profile: str | None = None
    problem: str | None = None
    quota: str | None = None
    error: LaunchError | None = None
    is_used_up: bool = False


class CardCells(NamedTuple):
    """A host's cards and memory in the table of hosts."""

    cards: str
    each: str
    driver: str
    memory: str


class Probing:
    """The probing of a machine: a probe finds its cards."""

    is_expected_only: ClassVar[bool] = False
    """Whether a host cannot be probed before a run, so that its facts are expectations."""
    whose: ClassVar[str] = ""
    """The machine with the probed facts if the job runs on another one, as a genitive: `the login node's`."""

    def choose(self, host: Host, asked: CardRequest, lookup: Lookup) -> MachineChoice | None:
        """Return the machine to request; None if the probe decides.

        Raises UsageError, RefusedError or UnknownNameError.
        """
        if asked.allows_substitute:
            raise UsageError(
                f"--allow-substitute: {host.name} has the cards that its probe finds\n  next   launch it without"
            )
        return None

    def probe(
        self, client: HostClient, host: Host, job: Job | None = None, choice: MachineChoice | None = None
    ) -> Facts:
        """Return a host's facts, for a job if one is given.

        With a job, the facts cover its packages and its model; without one, the host's other interpreters.
        For a host that cannot be probed, return the facts expected of the chosen machine. Raises HostError.
        """
        return ask(client, host, job)

    def probe_again(self, client: HostClient, host: Host, plan: Plan) -> Facts:
        """Return the facts for resuming a run from its recorded plan. Raises HostError."""
        from launcher.planning.assembly import job_of  # a launch imports this while it waits for its host

        return self.probe(client, host, job_of(plan))

    def expected(self, host: Host, choice: MachineChoice | None) -> Facts | None:
        """Return the facts expected of the chosen machine, without contacting it.

        Return None for a host that can be probed.
        """
        return None

    def expected_offer(self, host: Host, offer: InstanceOffer, profile: Profile) -> Facts:
        """Return the facts expected of a machine that could be rented.

        Raises UsageError for a host that rents none.
        """
        raise UsageError(f"{host.name}: it rents no machines\n  offers   launch offers")

    def cards(self, host: Host, job: Job, asked: CardRequest, facts: Facts, lookup: Lookup) -> HostCards:
        """Return the cards for a job, chosen from a host's probed facts.

        Raises UnknownNameError or RefusedError for cards without a profile.
        """
        _, uuids = requested_gpus(asked.gpus, 1)
        chosen = [gpu for gpu in facts.gpus if gpu.uuid in uuids]
        there = facts.model_copy(update={"gpus": chosen}) if chosen else facts
        profile, why = choose_profile(asked.profiles, there, lookup.profiles)
        return HostCards(facts, as_probed(profile, facts, uuids), why)

    def best_cards(self, host: Host, job: Job, facts: Facts, lookup: Lookup) -> HostCards:
        """Return the best cards of a host for a job. Raises what `cards` raises."""
        return self.cards(host, job, CardRequest(), facts, lookup)

    def is_unused_login(self, facts: Facts) -> bool:
        """Whether a host is a login node of a Slurm cluster but is not configured as one.

        A run would then train on the login node.
        """
        return facts.has_slurm

    def describe(self, facts: Facts) -> str:
        """Return a host's facts in one line."""
        if facts.gpus:
            driver = facts.gpus[0].driver
            card = facts.cards_with_held + (f", driver {driver}" if driver else "")
        else:
            card = "Apple GPU" if facts.has_apple_gpu else f"{facts.no_card}, {facts.cpus} CPUs"
        return f"{card}, {of_software(facts)}"

    # table of several hosts

    def ask_ahead(self, hosts: Sequence[Host]) -> None:
        """Start requesting the data that several hosts share, for their rows."""

    def row(self, host: Host, ask: Callable[[], Facts], lookup: Lookup) -> Probed:
        """Return the row of a host; `ask` probes it. Raises LaunchError."""
        there = self.best_cards(host, NO_JOB, ask(), lookup)
        return Probed(host, there.facts, there.profile.name)

    def is_usable(self) -> bool:
        """Whether credentials exist for a host of this kind that needs no table in the configuration."""
        return True

    def cells(self, host: Host, facts: Facts) -> CardCells:
        """Return a host's cards and memory for the table of hosts."""
        sizes = dict.fromkeys(
            f"{gpu.memory_mib / 1024:.0f} GiB" if gpu.memory_mib else "?" for gpu in facts.gpus
        )
        return CardCells(
            facts.cards_with_held or ("Apple GPU" if facts.has_apple_gpu else "-"),
            ", ".join(sizes) or "-",
            (facts.gpus[0].driver if facts.gpus else None) or "-",
            f"{facts.memory_gb:.0f} GB" if facts.memory_gb is not None else "-",
        )

    def note(self) -> str | None:
        """Return a note for below a table with hosts of this kind, or None."""
        return None

    # one host

    def quota(self, host: Host) -> str | None:
        """Return an account's remaining quota, or why it is unknown; None for a host without an account."""
        return None

    def titles(self, facts: Facts) -> tuple[str, str]:
        """Return the name of the probed machine and its ids, as `launch probe` shows them."""
        where = f"({facts.user}@{facts.hostname}, {facts.platform} {facts.machine})"
        return where, f"host {facts.host_id}, boot {facts.boot_id}"

    def rows(self, facts: Facts, quota: str | None) -> Iterator[tuple[str, str]]:
        """Yield the rows that `launch probe` shows instead of the probed cards, if any."""
        yield from ()


def ask(
    client: HostClient, host: Host, job: Job | None, *, slurm: bool = False, also: Sequence[str] = ()
) -> Facts:
    """Return a host's facts, including those of its cluster if `slurm`. Raises HostError.

    `also` are packages to look for besides those that the job needs.
    """
    return client.probe(
        environment=host.environment,
        packages=None if job is None else [*_packages(job), *also],
        engine=host.engine,
        model=source(job.model).model_dump() if job is not None and job.model is not None else None,
        model_keys=CONFIG_KEYS,
        slurm=slurm,
    )


def _packages(job: Job) -> list[str]:
    """Return the names of the packages that a job needs or may need."""
    more = [ROUNDING] if may_need_more(job) else []
    return looked_for(map(distribution, [*job.requirements, *more]), job.method)


def profiles_named(host: Host, lookup: Lookup) -> Sequence[Profile]:
    """Return the profiles that a host's table names, or none if it leaves the card to the probe."""
    return lookup.profiles_meant(host.profile) if host.profile not in (None, "auto") else ()


def choose_profile(
    profiles: Sequence[Profile], facts: Facts, known: Mapping[str, Profile]
) -> tuple[Profile, str]:
    """Return the profile that fits a probe, and the reason if there was a choice between cards.

    The profile is one of `profiles`; without any, one of all `known` profiles. If the host has none of the
    named cards, it is the first of `profiles`, and the gate then refuses it. Raises UnknownNameError for
    cards without a profile.
    """
    if len(profiles) == 1:
        return profiles[0], ""
    best = best_card(facts, profiles)
    if profiles and best is None:
        return profiles[0], ""
    profile = best[0] if best else match_profile(facts, known.values())
    return profile, card_choice_reason(profile, facts)


def of_software(facts: Facts) -> str:
    """Return a host's Python, container engines and free disk space in one line."""
    version, error = (
        (facts.interpreter.version, facts.interpreter.error) if facts.interpreter else (None, None)
    )
    python = f"Python {version}" if version else f"no usable Python{f' ({error})' if error else ''}"
    engines = [
        f"{engine.name.title()} {engine.version}"
        for engine in facts.engines
        if engine.version and not engine.error
    ]
    return ", ".join([python, *engines, facts.room_title])
