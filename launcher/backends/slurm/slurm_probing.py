"""The cards of a Slurm cluster: the login node lists those of the compute nodes, and a job gets some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from launcher.backends.base.probing import (
    NO_JOB,
    CardCells,
    CardRequest,
    HostCards,
    Probed,
    Probing,
    ask,
    of_software,
    profiles_named,
)
from launcher.backends.slurm.slurm_gate import duration_text
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.backends.slurm.slurm_job import possible_profiles, settings_of, with_expected_cards
from launcher.errors import HostError, RefusedError, UnknownNameError, UsageError
from launcher.values.facts import Facts
from launcher.values.reported.cluster import Cluster
from launcher.values.slurm_settings import SlurmSettings

if TYPE_CHECKING:
    from launcher.config.lookup import Lookup
    from launcher.transport.client.host_client import HostClient
    from launcher.values.host import Host
    from launcher.values.job import Job
    from launcher.values.plan import MachineChoice, Plan


class SlurmProbing(Probing):
    """The probing of a cluster. The cards of its compute nodes are only expected."""

    whose = "the login node's"

    def choose(self, host: Host, asked: CardRequest, lookup: Lookup) -> MachineChoice | None:
        """Return None, because Slurm chooses the machine. Raises UsageError for --allow-substitute."""
        if asked.allows_substitute:
            raise UsageError(
                f"--allow-substitute: {host.name}: a plan for each card that may be assigned is made automatically\n"
                "  next   launch it without, with   --profile auto"
            )
        return super().choose(host, asked, lookup)

    def probe(
        self, client: HostClient, host: Host, job: Job | None = None, choice: MachineChoice | None = None
    ) -> Facts:
        """Probe the login node. Raises HostError, also if the cluster's controller does not answer."""
        facts = ask(client, host, job, slurm=True, also=_imports(host, job) if job is not None else ())
        if facts.slurm is None or facts.slurm.error is not None:
            why = facts.slurm.error if facts.slurm is not None else None
            raise HostError(
                host.name,
                f"{host.name}: {facts.hostname} has no answer of Slurm's: {why or 'its agent did not ask'}\n"
                "  look there   scontrol ping",
            )
        return facts

    def probe_again(self, client: HostClient, host: Host, plan: Plan) -> Facts:
        """Return the facts with the plan's cards, which are expected."""
        facts = super().probe_again(client, host, plan)
        return with_expected_cards(facts, None if plan.rehearsed else plan.profile)

    def cards(self, host: Host, job: Job, asked: CardRequest, facts: Facts, lookup: Lookup) -> HostCards:
        """Return the expected cards. Raises RefusedError for cards without a profile."""
        settings = settings_of(host, job) or SlurmSettings()
        profile, *others = possible_profiles(
            host.name, settings, asked.profiles, asked.gpus, facts.slurm, lookup.profiles
        )
        why = f"or {', '.join(other.title for other in others)}" if others else ""
        return HostCards(with_expected_cards(facts, None if asked.rehearses else profile), profile, why)

    def best_cards(self, host: Host, job: Job, facts: Facts, lookup: Lookup) -> HostCards:
        """Return the cards of a job, from the profiles that the host's table names."""
        return self.cards(host, job, CardRequest(profiles_named(host, lookup)), facts, lookup)

    def is_unused_login(self, facts: Facts) -> bool:
        """Return False: the host is configured as a cluster."""
        return False

    def describe(self, facts: Facts) -> str:
        """Return a cluster's facts in one line."""
        return f"{_title(_cluster(facts))}, {facts.cards or 'no card'} expected, {of_software(facts)}"

    def row(self, host: Host, ask: Callable[[], Facts], lookup: Lookup) -> Probed:
        """Return a cluster's row, with the cards of a job if the host's table determines them."""
        facts = ask()
        words = _words(_cluster(facts))
        try:
            there = self.best_cards(host, NO_JOB, facts, lookup)
        except (RefusedError, UnknownNameError):
            return Probed(host, facts, quota=words)
        return Probed(host, there.facts, there.profile.name, quota=words)

    def cells(self, host: Host, facts: Facts) -> CardCells:
        """Return the cards of its partition by Slurm's names."""
        settings = host.slurm if isinstance(host, SlurmHost) else SlurmSettings()
        shown = super().cells(host, facts)
        return CardCells(_cluster(facts).cards(settings.partition) or "-", "-", shown.driver, "-")

    def rows(self, facts: Facts, quota: str | None) -> Iterator[tuple[str, str]]:
        """Yield the cluster's facts, and a row for each group of equal nodes of a partition."""
        cluster = _cluster(facts)
        accounting = "keeps accounts" if cluster.has_accounting else "keeps no accounts"
        yield "cluster", f"{_title(cluster).removeprefix('cluster ')}, {accounting}"
        for key, names in (("accounts", cluster.accounts), ("qos", cluster.qos)):
            if names:
                yield key, ", ".join(names)
        for partition in cluster.partitions:
            limits = [
                "no limit of time"
                if partition.max_time_s is None
                else f"{duration_text(partition.max_time_s)} at most"
            ]
            limits += [f"{partition.max_nodes} nodes a job"] if partition.max_nodes is not None else []
            limits += ["default"] if partition.is_default else []
            limits += [partition.state] if partition.state != "up" else []
            yield "nodes", f"{partition.name}   {', '.join(limits)}"
            for alike in partition.nodes:
                words = [f"{alike.cpus} CPUs" if alike.cpus else "", *(gres.title for gres in alike.gres)]
                words += [f"{alike.memory_mib / 1024:.0f} GiB"] if alike.memory_mib else []
                words += [f"features {' '.join(alike.features)}"] if alike.features else []
                out = {"drained": alike.drained, "down": alike.down - alike.drained}
                counts = [
                    f"{alike.idle} idle",
                    *(f"{count} {word}" for word, count in out.items() if count > 0),
                ]
                yield "", f"  {alike.count} with {', '.join(filter(None, words))}: {', '.join(counts)}"
        yield "yours", f"{cluster.running or 0} jobs running, {cluster.queued or 0} waiting"


def _imports(host: Host, job: Job) -> tuple[str, ...]:
    """Return packages to look for because a script may import them. If one is missing, the job fails after the queue.

    Return none with modules or an image, which may have the package, or with `requirements`, which are looked
    for anyway.
    """
    settings = settings_of(host, job) or SlurmSettings()
    return () if job.requirements or settings.modules or settings.image else ("torch",)


def _cluster(facts: Facts) -> Cluster:
    return facts.slurm or Cluster()


def _title(cluster: Cluster) -> str:
    """Return a cluster's name and version."""
    return f"cluster {cluster.name or 'without a name'} (Slurm {cluster.version or 'of unknown version'})"


def _words(cluster: Cluster) -> str:
    """Return a cluster's version, free nodes, partitions and the user's jobs, for one row."""
    default = next((one for one in cluster.partitions if one.is_default), None)
    words = [_title(cluster)]
    if default is not None:
        idle = sum(alike.idle for alike in default.nodes)
        down = sum(alike.down for alike in default.nodes)
        words.append(
            f"{idle} of {default.size} nodes idle{f' and {down} down' if down else ''} in {default.name}"
        )
    if others := [one.name for one in cluster.partitions if one is not default]:
        shown = ", ".join(others[:4]) + (f", +{len(others) - 4}" if len(others) > 4 else "")
        words.append(f"also {shown}")
    if cluster.running or cluster.queued:
        words.append(f"yours: {cluster.running or 0} running, {cluster.queued or 0} waiting")
    return ", ".join(words)
