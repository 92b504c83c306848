"""What shared code asks of a backend before a plan: which cards there are, or are expected, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from launcher.errors import UsageError
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
    from launcher.transport.client.desk import HostClient
    from launcher.values.host import Host
    from launcher.values.machine_choice import MachineChoice
    from launcher.values.plan import Plan

NO_JOB = Job(name="none", command=("true",))
"""A job that needs nothing: a probe for it does not look for other interpreters, which takes time."""


class CardRequest(NamedTuple):
    """The cards that a request asks for: one of `profiles`, which `name` means, any if it is empty; and `gpus` as in --gpus.

    `rehearses`: they are only imitated. `allows_substitute`: others may come.
    """

    profiles: Sequence[Profile] = ()
    name: str = "auto"
    gpus: str | None = None
    rehearses: bool = False
    allows_substitute: bool = False


class CardsThere(NamedTuple):
    """The facts of a host for a plan, the profile of the cards that it gets there, and why, if there was a choice.

    Of a cluster they are those of its login node with the cards that are expected on another.
    """

    facts: Facts
    profile: Profile
    why: str = ""


class Probed(NamedTuple):
    """What one of several hosts answered: its facts and the profile of its best card, or why not.

    The facts of an account are expectations. `quota` is what an account has left, what it would rent, or what is free in a
    cluster, in words.
    """

    host: Host
    facts: Facts | None = None
    profile: str | None = None
    problem: str | None = None
    quota: str | None = None


class CardCells(NamedTuple):
    """A host's cards and memory in the table of hosts."""

    cards: str
    each: str
    driver: str
    memory: str


class Probing:
    """A machine's answers: its probe finds them."""

    is_expected_only: ClassVar[bool] = False
    """Whether nothing can be probed before a run: facts are expectations."""
    whose: ClassVar[str] = ""
    """Whose facts a probe finds, where they are not those of what runs a job, e.g. `the login node's`."""

    def choose(self, host: Host, asked: CardRequest, lookup: Lookup) -> MachineChoice | None:
        """Return the machine to ask for; None where the probe decides. Raises UsageError, RefusedError, UnknownNameError."""
        del lookup
        if asked.allows_substitute:
            raise UsageError(
                f"--allow-substitute: {host.name} has the cards that its probe finds\n  next   launch it without"
            )
        return None

    def probe(
        self, desk: HostClient, host: Host, job: Job | None = None, choice: MachineChoice | None = None
    ) -> Facts:
        """Ask a host for its facts, and for the packages and the model of a job; without a job, for its other interpreters.

        Where nothing can be probed they are what is expected of the chosen machine. Raises HostError.
        """
        del choice
        return ask(desk, host, job)

    def probe_again(self, desk: HostClient, host: Host, plan: Plan) -> Facts:
        """Return the facts for a run that goes on by a recorded plan. Raises HostError."""
        from launcher.planning.assembly import job_of  # a launch loads it while its host is waited for

        return self.probe(desk, host, job_of(plan))

    def expected(self, host: Host, choice: MachineChoice | None) -> Facts | None:
        """Return what is expected of the chosen machine, without asking anybody; None for a host that can be probed."""
        del host, choice
        return None

    def expected_offer(self, host: Host, offer: InstanceOffer, profile: Profile) -> Facts:
        """Return what is expected of a machine that could be rented. Raises UsageError where nothing is."""
        del offer, profile
        raise UsageError(f"{host.name}: nothing is rented there\n  what is offered   launch offers")

    def cards(self, host: Host, job: Job, asked: CardRequest, facts: Facts, lookup: Lookup) -> CardsThere:
        """Return the cards for a job on a host, by what a probe of it found.

        Raises UnknownNameError, or RefusedError, for cards that no profile names.
        """
        del host, job
        _, uuids = requested_gpus(asked.gpus, 1)
        chosen = [gpu for gpu in facts.gpus if gpu.uuid in uuids]
        there = facts.model_copy(update={"gpus": chosen}) if chosen else facts
        profile, why = choose_profile(asked.profiles, there, lookup.profiles)
        return CardsThere(facts, as_probed(profile, facts, uuids), why)

    def best_cards(self, host: Host, job: Job, facts: Facts, lookup: Lookup) -> CardsThere:
        """Return the best cards of a host for a job. Raises what `cards` raises."""
        return self.cards(host, job, CardRequest(), facts, lookup)

    def is_unused_login(self, facts: Facts) -> bool:
        """Whether a host is a login node of a Slurm cluster, which its table does not say: a run would train on it."""
        return facts.has_slurm

    def describe(self, facts: Facts) -> str:
        """Return a host's facts in one line."""
        if facts.gpus:
            driver = facts.gpus[0].driver
            card = facts.cards_with_held + (f", driver {driver}" if driver else "")
        else:
            card = "Apple GPU" if facts.has_apple_gpu else f"{facts.no_card}, {facts.cpus} CPUs"
        return f"{card}, {of_software(facts)}"

    # many hosts

    def ask_ahead(self, hosts: Sequence[Host]) -> None:
        """Begin to ask for what several hosts have in common, for their rows."""

    def row(self, host: Host, ask: Callable[[], Facts], lookup: Lookup) -> Probed:
        """Return what a host has; `ask` probes it. Raises LaunchError."""
        there = self.best_cards(host, NO_JOB, ask(), lookup)
        return Probed(host, there.facts, there.profile.name)

    def is_usable(self) -> bool:
        """Whether there are credentials for a host of this kind that needs no table."""
        return True

    def cells(self, host: Host, facts: Facts) -> CardCells:
        """Return a host's cards and memory for the table of hosts."""
        del host
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
        """Return what is said below a table with hosts of this kind; None for nothing."""
        return None

    # one host

    def quota(self, host: Host) -> str | None:
        """Return what an account has left, or why that is unknown; None for another host."""
        del host
        return None

    def titles(self, facts: Facts) -> tuple[str, str]:
        """Return who was probed, and the ids of that, as `launch probe` shows them."""
        where = f"({facts.user}@{facts.hostname}, {facts.platform} {facts.machine})"
        return where, f"host {facts.host_id}, boot {facts.boot_id}"

    def rows(self, facts: Facts, quota: str | None) -> Iterator[tuple[str, str]]:
        """Yield what `launch probe` shows instead of the cards that were probed; nothing if they are shown."""
        del facts, quota
        yield from ()


def ask(desk: HostClient, host: Host, job: Job | None, *, slurm: bool = False) -> Facts:
    """Ask a host for its facts, and for those of its cluster. Raises HostError."""
    return desk.probe(
        environment=host.environment,
        packages=None if job is None else _packages(job),
        engine=host.engine,
        model=source(job.model).model_dump() if job is not None and job.model is not None else None,
        model_keys=CONFIG_KEYS,
        slurm=slurm,
    )


def _packages(job: Job) -> list[str]:
    """Return the names of the packages that a job needs, or may need."""
    more = [ROUNDING] if may_need_more(job) else []
    return looked_for(map(distribution, [*job.requirements, *more]), job.method)


def profiles_named(host: Host, lookup: Lookup) -> Sequence[Profile]:
    """Return the profiles that a host's table names; none if it leaves the card to the probe."""
    return lookup.profiles_meant(host.profile) if host.profile not in (None, "auto") else ()


def choose_profile(
    profiles: Sequence[Profile], facts: Facts, known: Mapping[str, Profile]
) -> tuple[Profile, str]:
    """Return the profile that fits a probe, and why, if there was a choice between cards.

    It is one of `profiles`, or of all that are `known` if it is empty. If the host has none of the named cards it is the
    first, which the gate then refuses. Raises UnknownNameError for cards that no profile names.
    """
    if len(profiles) == 1:
        return profiles[0], ""
    best = best_card(facts, profiles)
    if profiles and best is None:
        return profiles[0], ""
    profile = best[0] if best else match_profile(facts, known.values())
    return profile, card_choice_reason(profile, facts)


def of_software(facts: Facts) -> str:
    """Return a host's Python, its engines and its room in one line."""
    version = facts.interpreter.version if facts.interpreter else None
    python = f"Python {version}" if version else "no Python"
    engines = [
        f"{engine.name.title()} {engine.version}"
        for engine in facts.engines
        if engine.version and not engine.error
    ]
    return ", ".join([python, *engines, facts.room_title])
