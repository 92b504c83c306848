"""Translate a job into a Slurm request: settings, possible cards on each node, and flags of sbatch.

    cards = possible_profiles("hive", settings, named, None, cluster, profiles())
    asked = submission(settings, cards, cluster, is_rehearsed=False)

Slurm assigns the cards. A plan gives the number and the profile of each node's cards, and the job checks the
assigned ones. Example: profile a100_80gb in a partition whose nodes have `gpu:a100:4` becomes
`--gres=gpu:a100:1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from launcher.backends.slurm.apptainer import container_words
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.errors import RefusedError, UsageError
from launcher.planning.placement import expected_card, possible_cards, requested_gpus
from launcher.planning.precision.ladder import is_too_large_as_asked
from launcher.values.facts import Facts, Gpu
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import CardPlan, Plan, Submission
from launcher.values.profile import Profile
from launcher.values.reported.cluster import Cluster, Gres, Partition
from launcher.values.slurm_settings import SlurmSettings

GPU = "gpu"
_COUNT = re.compile(r"([0-9]{1,15})([KMGT]?)")
_SAME_MODEL = r"(?![^a-z0-9]?(?:ti|super|ada|laptop)(?![a-z]))"
"""Suffixes that make the name of a different card: an RTX 4080 Super is not an RTX 4080."""
_MEMORY = re.compile(r"(?<![a-z0-9])([0-9]{1,3})gb?(?![a-z0-9])")


def settings_of(host: Host, job: Job) -> SlurmSettings | None:
    """Return a job's Slurm settings on a host; None for a host that is no cluster."""
    return host.slurm.changed_by(job.slurm) if isinstance(host, SlurmHost) else None


def resubmission(parent: Submission | None, changes: SlurmSettings | None) -> Submission | None:
    """Return the request of a resumed run: its parent's, with some keys changed."""
    if parent is None:
        return None
    parent = parent.model_copy(update={"after": ()})  # they had ended before its first start
    if changes is None:
        return parent
    settings = SlurmSettings.from_flags(parent.flags).changed_by(changes)
    modules = settings.modules if "modules" in changes.model_fields_set else parent.modules
    return parent.model_copy(update={"flags": settings.flags, "time_s": settings.time_s, "modules": modules})


def possible_profiles(
    host: str,
    settings: SlurmSettings,
    named: Sequence[Profile],
    asked: str | None,
    cluster: Cluster | None,
    known: Mapping[str, Profile],
) -> tuple[Profile, ...]:
    """Return the profiles of the cards possible on each node. The plan is for the first one.

    They are the `named` profiles. If none is named, they are those of the card types in the job's partitions,
    or the CPU's in a partition without cards. `asked` is the value of --gpus. Raises RefusedError for cards
    without a profile, and UsageError if `gres` and --gpus ask for different numbers of cards.
    """
    count = _count(settings, asked)
    found = _fitting(named, _types(settings, cluster)) or _by_type(host, settings, cluster, known)
    return tuple(_of_count(profile, count) for profile in found)


def submission(
    settings: SlurmSettings,
    cards: Sequence[Profile],
    cluster: Cluster | None,
    *,
    is_rehearsed: bool,
    paths: Sequence[str] = (),
) -> Submission:
    """Return the request to Slurm for a plan whose profile is the first of `cards`, the possible cards.

    `paths` are the paths on the cluster that the job names; its image must make them visible.
    """
    first = cards[0]
    has_cards = first.kind == "cuda" and not is_rehearsed
    gres = _gres(settings, cards, cluster) if has_cards else settings.gres
    image = settings.image
    return Submission(
        flags=settings.model_copy(update={"gres": gres}).flags,
        time_s=settings.time_s,
        nodes=settings.nodes,
        build=settings.build,
        modules=settings.modules,
        cards=(possible_cards(first),) if has_cards else (),
        container=container_words(image, has_cards=has_cards, paths=paths) if image is not None else (),
    )


def with_others(plan: Plan, others: Sequence[Plan]) -> Plan:
    """Add the plans for the other possible cards to a plan, and return it.

    Cards are left out if their memory is too small for the requested precision.
    """
    if plan.slurm is None or not plan.slurm.cards:
        return plan
    more = (
        CardPlan(**{key: getattr(other, key) for key in CardPlan.model_fields})
        for other in others
        if other.profile.kind == "cuda" and not is_too_large_as_asked(other.ladder)
    )
    cards = (*plan.slurm.cards, *(possible_cards(one.profile, one) for one in more))
    return plan.model_copy(update={"slurm": plan.slurm.model_copy(update={"cards": cards})})


def with_expected_cards(facts: Facts, profile: Profile | None) -> Facts:
    """Return a login node's facts with the cards expected on a compute node in place of its own.

    If `profile` is None or a CPU's, the facts have no cards.
    """
    count = profile.count if profile is not None and profile.kind == "cuda" else 0
    gpus: tuple[Gpu, ...] = ()
    if profile is not None:
        name = next(iter(profile.probe_names), profile.title)
        gpus = tuple(expected_card(profile, index, name) for index in range(count))
    own = {"gpu_error": None, "holders_error": None, "nvidia_mps": False}
    return facts.model_copy(update={"gpus": gpus, **own})


def gpus_of(settings: SlurmSettings) -> tuple[Gres, ...]:
    """Return the cards in `gres`; empty if `gres` leaves the cards to the plan."""
    return tuple(one for one in parse_gres(settings.gres) if one.name == GPU)


def parse_gres(written: str | None) -> tuple[Gres, ...]:
    """Parse a gres request for each node, such as `gpu:a100:2,nvme:1`."""
    found = []
    for word in (written or "").split(","):
        name, *more = word.split(":")
        count = _COUNT.fullmatch(more[-1]) if more else None
        kinds = more[:-1] if count else more
        number = int(count[1]) * 1024 ** " KMGT".index(count[2] or " ") if count else 1
        if name:
            found.append(Gres(name=name, type=kinds[0] if kinds else None, count=number))
    return tuple(found)


def is_of_type(profile: Profile, kind: str) -> bool:
    """Whether a cluster's name for cards, such as `nvidia_a100_80gb_pcie`, matches a profile."""
    base = re.sub(r"(_[0-9]+gb|x[0-9]+)$", "", profile.name)
    words = "[^a-z0-9]?".join(map(re.escape, base.split("_")))
    before, after = (
        r"(?:^|[^a-z0-9]|nvidia|tesla|geforce|quadro)",
        r"(?=$|[^a-z0-9]|pcie|sxm|nvl|hbm)",
    )
    if not re.search(rf"{before}{words}{after}{_SAME_MODEL}", kind.lower()):
        return False
    memory = _MEMORY.search(kind.lower())
    return memory is None or profile.memory_gb is None or int(memory[1]) == round(profile.memory_gb)


def gres_titles(partitions: Sequence[Partition]) -> str:
    """Return the gres of the partitions' nodes as text, e.g. `gpu:a100:2 (2 nodes)`."""
    found: dict[str, int] = {}
    for alike in (alike for one in partitions for alike in one.nodes):
        title = ",".join(gres.title for gres in alike.gres) or "nothing of the kind"
        found[title] = found.get(title, 0) + alike.count
    return (
        "     ".join(f"{title} ({count} node{'s' * (count != 1)})" for title, count in found.items())
        or "nothing"
    )


def _count(settings: SlurmSettings, asked: str | None) -> int | None:
    """Return the number of cards on each node from `gres` or --gpus; None if neither has it."""
    written = sum(one.count for one in gpus_of(settings)) or None
    if asked is None:
        return written
    count, _ = requested_gpus(asked, 1)
    if written is not None and written != count:
        raise UsageError(
            f'--gpus {asked}: gres = "{settings.gres}" asks Slurm for {written} on each node\n'
            f"  the number in one place   --set slurm.gres=gpu:{count}"
        )
    return count


def _of_count(profile: Profile, count: int | None) -> Profile:
    is_right = profile.kind != "cuda" or count is None or count == profile.count
    return profile if is_right else profile.of_cards(count or 1)


def _types(settings: SlurmSettings, cluster: Cluster | None) -> list[str | None]:
    """Return the possible card types by the cluster's names; empty if they are unknown or there are no cards."""
    typed = [one.type for one in gpus_of(settings) if one.type is not None]
    if typed:
        return [*dict.fromkeys(typed)]
    return _types_there(cluster.partitions_of(settings.partition) if cluster is not None else ())


def _types_there(partitions: Sequence[Partition]) -> list[str | None]:
    """Return the types of the partitions' cards, by the cluster's names."""
    return [*dict.fromkeys(one.type for partition in partitions for one in partition.gpus)]


def _fitting(named: Sequence[Profile], types: Sequence[str | None]) -> tuple[Profile, ...]:
    """Return the named profiles that match one of the types, or all of them if none matches."""
    fitting = tuple(one for one in named if any(kind is not None and is_of_type(one, kind) for kind in types))
    return fitting or tuple(named)


def _by_type(
    host: str, settings: SlurmSettings, cluster: Cluster | None, known: Mapping[str, Profile]
) -> tuple[Profile, ...]:
    """Return the profiles of all possible cards. Raises RefusedError for cards without a profile."""
    mend = f"name the card   launch --host {host} --profile NAME     the names   launch profile list"
    if cluster is None:
        raise RefusedError(f"{host}: which cards its nodes have is not known\n  {mend}")
    partitions = cluster.partitions_of(settings.partition)
    where = f"{host}: partition {', '.join(one.name for one in partitions)}"
    types = _types(settings, cluster)
    if not types:
        return (known["cpu"],)
    there = {(kind or "").lower() for kind in _types_there(partitions)}
    found: dict[str, Profile] = {}
    for kind in types:
        alike = [one for one in known.values() if one.kind == "cuda" and one.count == 1 and kind is not None]
        fitting = [one for one in alike if is_of_type(one, kind or "")]
        if not fitting and partitions and (kind or "").lower() not in there:
            raise RefusedError(
                f"{where} has no node with {settings.gres}\n  its nodes have   {gres_titles(partitions)}"
            )
        if not fitting and not partitions:  # no such partition: the gate would refuse it
            raise RefusedError(f"{host}: no profile is for gpu:{kind}\n  {mend}")
        if not fitting:
            words = (
                f"gpu:{kind}, which no profile is for"
                if kind
                else f"cards without a type ({_titles(partitions)})"
            )
            raise RefusedError(f"{where} has {words}\n  {mend}")
        found |= {one.name: one for one in sorted(fitting, key=lambda one: one.memory_gb or 0)}
    return tuple(found.values())


def _titles(partitions: Sequence[Partition]) -> str:
    return ", ".join(dict.fromkeys(one.title for partition in partitions for one in partition.gpus))


def _gres(settings: SlurmSettings, cards: Sequence[Profile], cluster: Cluster | None) -> str:
    """Return the gres for each node: that of the settings, else the plan's cards by the cluster's name."""
    if settings.gres is not None and gpus_of(settings):
        return settings.gres
    types = _types(settings, cluster)
    ours = [kind for kind in types if kind is not None and any(is_of_type(one, kind) for one in cards)]
    is_any = not ours or (len(types) > 1 and len(ours) == len(types))
    word = f"{GPU}:{cards[0].count}" if is_any else f"{GPU}:{ours[0]}:{cards[0].count}"
    return ",".join(filter(None, (settings.gres, word)))
