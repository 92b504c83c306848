"""Check a plan for a Slurm cluster against the facts of its login node.

`sbatch` accepts many jobs that can never start: time above a partition's limit, more nodes than it has, an
unknown account or QOS. Such a job waits for ever, so it is refused here. The messages list the valid values.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence

from launcher.agent.liveness.slurm.slurm_submission import MAX_TOLD, told_s
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.backends.slurm.slurm_job import gpus_of, gres_titles, is_of_type, parse_gres
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.parsing import nearest
from launcher.values.plan import Finding, Plan, Submission
from launcher.values.profile import Profile
from launcher.values.reported.cluster import Cluster, Gres, NodeSet, Partition
from launcher.values.slurm_settings import SlurmSettings

_OWN_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - nothing is written there
"""Folders that each machine has on its own disk or in memory."""
_EARLY_S = 60
"""Slurm may send a signal this many seconds earlier than requested (the page of `sbatch`, --signal)."""
_WORTH_S = 60
_IN_MEMORY = ("tmpfs", "ramfs")
_OF_ONE_MACHINE = (
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "f2fs",
    "bcachefs",
    "jfs",
    "reiserfs",
    "overlay",
)
_CARD = re.compile(
    r"(?<![a-z0-9])(nvidia|tesla|geforce|quadro|rtx|gtx|titan|[abghlpt][0-9]{1,4}s?|v100|mi[0-9]{2,3}x?)(?![a-z])"
)
"""Words that mark a card type as a known kind, rather than as a name that the cluster made up."""
_SIZE = re.compile(r"--(cpus-per-task|mem)=([0-9]{1,12})([KMGT]?)", re.IGNORECASE)
"""The flags of `extra` whose values are compared with the nodes. `--mem` is in MiB without a unit."""
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_WORD = re.compile(r"(\*?)([\w.:-]+)")


def slurm_findings(plan: Plan, facts: Facts | None, host: Host) -> list[Finding]:
    """Return the findings of a plan for a cluster.

    `facts` are those of its login node, with the cards expected on a compute node.
    """
    if plan.slurm is None or facts is None:
        return []
    found = [
        *_root(plan, facts, host.root),
        *_pythons(plan, host),
        *_image(plan, plan.slurm),
        *limit_findings(plan.host, plan.slurm, facts.slurm),
    ]
    if facts.slurm is None or facts.slurm.error is not None:
        return found
    settings = SlurmSettings.from_flags(plan.slurm.flags)
    if _partition_refusals(settings, facts.slurm, plan.host):
        return found
    return [*found, *_types(plan, plan.slurm, settings, facts.slurm.partitions_of(settings.partition))]


def limit_findings(host: str, asked: Submission, cluster: Cluster | None) -> list[Finding]:
    """Return the findings about requested resources that a cluster's limits exclude, whatever else is planned."""
    return settings_findings(host, SlurmSettings.from_flags(asked.flags), cluster)


def settings_findings(host: str, settings: SlurmSettings, cluster: Cluster | None) -> list[Finding]:
    """Return the findings about settings that a cluster's limits exclude."""
    if cluster is None or cluster.error is not None:
        return []
    found = [
        *_named("account", settings.account, cluster.accounts, host),
        *_named("qos", settings.qos, cluster.qos, host),
        *(wrong := _partition_refusals(settings, cluster, host)),
    ]
    partitions = cluster.partitions_of(settings.partition)
    if wrong or not partitions:
        return found
    return [
        *found,
        *_closed(partitions, host),
        *_time(settings, partitions, host),
        *_nodes(settings, partitions, host),
        *_gres(settings, partitions, host),
        *_too_large(settings, partitions, host),
        *_features(settings, partitions, host),
    ]


def short_time(host: str, grace_s: float, time: str | None, time_s: int) -> Iterable[Finding]:
    """Yield a note about a time limit that is too short.

    Within it, a start of the job may train for less than a minute, or have less time to save than its grace.
    """
    left_s = told_s(grace_s, time_s)
    is_cut = left_s >= time_s * MAX_TOLD
    if not is_cut and time_s - left_s - _EARLY_S > _WORTH_S:
        return
    message = (
        f'{host}: time = "{time}" is short: each start is asked to save {left_s} s before its end, '
        f"and Slurm's signal may come up to {_EARLY_S} s sooner"
    )
    mend = "a longer time   --set slurm.time=30     or less to save in   --set stop_grace_s=10"
    yield Finding(level="note", code="short-time", message=message, mend=mend)


def duration_text(seconds: float) -> str:
    """Return a duration in a suitable unit: 7 days, 1.5 h, 10 min."""
    for unit_s, unit in ((86400, "days"), (3600, "h")):
        if seconds >= unit_s and (unit == "h" or seconds >= 2 * unit_s):
            return f"{round(seconds / unit_s, 1):g} {unit}"
    return f"{seconds / 60:.3g} min"


def _refusal(code: str, message: str, mend: str) -> Finding:
    return Finding(level="refuse", code=code, message=message, mend=mend)


def _root(plan: Plan, facts: Facts, written: str) -> list[Finding]:
    """Refuse a root that `sbatch` cannot use, or that no compute node can see.

    Note a root on a disk that perhaps only the login node sees. If the root is `written` as a path below the
    home, do not advise to use the home.
    """
    disk, root = facts.file_system, facts.root
    if "\\" in root:
        message = f"{plan.host}: {root} has a backslash, which Slurm leaves out of the name of a job's log: it would be written elsewhere, or nowhere"
        mend = f'a folder without one that all nodes see   root = "/shared/you/launch"  for {plan.host}'
        return [_refusal("root-with-backslash", message, mend)]
    if disk.is_shared or (facts.slurm is not None and facts.slurm.root_was_seen):
        return []
    mend = f'a folder that all nodes see, such as your home   root = "~/.launch"  for {plan.host}'
    if _is_own(root) or disk.kind in _IN_MEMORY:
        message = f"{plan.host}: {root} is {facts.hostname}'s own ({disk.kind or 'unknown file system'}): compute nodes cannot read files there"
        return [_refusal("root-not-shared", message, mend)]
    if disk.kind not in _OF_ONE_MACHINE:
        return []
    message = (
        f"{plan.host}: {root} is on a disk of {facts.hostname} ({disk.kind}): "
        "unless the compute nodes see the same files at the same path, the job ends as soon as it begins"
    )
    is_in_home = written.startswith("~")
    return [
        Finding(level="note", code="root-maybe-not-shared", message=message, mend="" if is_in_home else mend)
    ]


def _is_own(path: str) -> bool:
    """Whether each machine has this path on its own disk or in memory."""
    return any(path == place or path.startswith(f"{place}/") for place in _OWN_PLACES)


def _pythons(plan: Plan, host: Host) -> Iterable[Finding]:
    """Yield the refusal of a Python that no compute node sees, for the job or for its agent."""
    python = host.python if isinstance(host, SlurmHost) else None
    for key, path in (("environment", plan.host_environment), ("python", python)):
        if path is not None and _is_own(path):
            message = f'{plan.host}: {key} = "{path}" is on the login node alone: compute nodes cannot read files there'
            mend = f'one that all nodes see, such as in your home   {key} = "~/…"  for {plan.host}'
            yield _refusal("python-not-shared", message, mend)


def _image(plan: Plan, asked: Submission) -> list[Finding]:
    """Refuse settings that have no effect in an image: required packages, and a Python of the host.

    Add a note that the image's content is unknown.
    """
    if not asked.container:
        return []
    image = asked.container[-1]
    start = f"{plan.host}: the job runs in {image}"
    found = []
    if plan.requirements:
        message = f"{start}, into which nothing is installed: the job requires {', '.join(plan.requirements)}"
        mend = "have them in the image, and   --set 'requirements=[]'"
        found.append(_refusal("image-lacks-packages", message, mend))
    if plan.host_environment is not None:
        message = f"{start}, and not with the Python of environment = {plan.host_environment}"
        found.append(_refusal("image-and-environment", message, "leave out one of   environment   image"))
    untried = "; launcher was never tried with cards there (--nv)" if "--nv" in asked.container else ""
    message = f"{start}, whose contents were not checked{untried}"
    return [*found, Finding(level="note", code="image-unknown", message=message)]


def _named(key: str, name: str | None, known: Sequence[str] | None, host: str) -> Iterable[Finding]:
    """Yield the refusal of an account or QOS that the user does not have: a job with it would wait for ever."""
    if name is None or known is None or name in known:
        return
    message = f'{host}: {key} = "{name}" is not one of yours{nearest(name, known)}: sbatch would take the job, and never start it'
    yield _refusal(f"no-such-{key}", message, f"yours   {', '.join(known)}")


def _partition_refusals(settings: SlurmSettings, cluster: Cluster, host: str) -> list[Finding]:
    """Refuse a missing partition, and a job without a partition on a cluster without a default."""
    known = [one.name for one in cluster.partitions]
    listed = ", ".join(f"{one.name} (default)" if one.is_default else one.name for one in cluster.partitions)
    if settings.partition is None and not any(one.is_default for one in cluster.partitions):
        message = f"{host}: its cluster has no default partition"
        return [
            _refusal("no-partition", message, f"name one   --set slurm.partition=…     there are   {listed}")
        ]
    wanted = settings.partition.split(",") if settings.partition is not None else []
    missing = [name for name in wanted if name not in known]
    if missing:
        message = f"{host}: no partition '{missing[0]}'{nearest(missing[0], known)}"
        return [_refusal("no-partition", message, f"there are   {listed}")]
    return []


def _closed(partitions: Sequence[Partition], host: str) -> list[Finding]:
    """Return a note if no requested partition starts jobs at present."""
    if any(one.state == "up" for one in partitions):
        return []
    names = ", ".join(f"{one.name} is {one.state}" for one in partitions)
    message = f"{host}: partition {names}: it starts no jobs at present, and this job waits"
    return [Finding(level="note", code="partition-down", message=message)]


def _time(settings: SlurmSettings, partitions: Sequence[Partition], host: str) -> list[Finding]:
    """Refuse a time above the limit of every partition: such a job would wait for ever."""
    asked = settings.time_s
    limits = [one.max_time_s for one in partitions]
    if asked is None or any(limit is None or asked <= limit for limit in limits):
        return []
    shown = ", ".join(f"{one.name} allows {duration_text(one.max_time_s or 0)}" for one in partitions)
    message = f'{host}: time = "{settings.time}" is {duration_text(asked)}, and partition {shown}: sbatch would take the job, and never start it'
    largest = max(limit or 0 for limit in limits)
    mend = f"--set slurm.time={largest / 60:.0f}     in minutes: if the script resumes, Slurm starts its job again after each limit, until the run has ended"
    return [_refusal("time-over-limit", message, mend)]


def _nodes(settings: SlurmSettings, partitions: Sequence[Partition], host: str) -> list[Finding]:
    """Refuse more nodes than any partition has or allows per job. Note if too many of them are down."""
    count = settings.nodes
    most = {one.name: min(one.size, one.max_nodes or one.size) for one in partitions}
    if count > max(most.values()):
        shown = ", ".join(
            f"{one.name} {'allows a job' if most[one.name] < one.size else 'has'} {most[one.name]}"
            for one in partitions
        )
        message = (
            f"{host}: nodes = {count}, and partition {shown}: sbatch would take the job, and never start it"
        )
        return [_refusal("too-many-nodes", message, f"--set slurm.nodes={max(most.values())}")]
    down = {one.name: sum(alike.down for alike in one.nodes) for one in partitions}
    if any(one.size - down[one.name] >= count for one in partitions):
        return []
    drained = {one.name: sum(alike.drained for alike in one.nodes) for one in partitions}
    shown = ", ".join(
        f"{down[one.name]} of {one.size} nodes of partition {one.name} are down"
        + (f" ({drained[one.name]} drained)" if drained[one.name] else "")
        for one in partitions
    )
    message = f"{host}: {shown}: the job waits until {count} {'is' if count == 1 else 'are'} up"
    return [Finding(level="note", code="nodes-down", message=message)]


def _gres(settings: SlurmSettings, partitions: Sequence[Partition], host: str) -> list[Finding]:
    """Refuse a gres that too few nodes of the partitions have. `_nodes` checks the number of nodes itself."""
    wanted = parse_gres(settings.gres)
    count = min(settings.nodes, max(one.size for one in partitions))
    most = max(
        sum(alike.count for alike in one.nodes if all(_has(alike.gres, gres) for gres in wanted))
        for one in partitions
    )
    if most >= count:
        return []
    names = ", ".join(one.name for one in partitions)
    types = {(one.type or "").lower() for partition in partitions for one in partition.gpus}
    card = next((gres for gres in wanted if gres.name.lower() in types), None)
    if card is not None and not any(gres.name == card.name for gres in _all_gres(partitions)):
        message = f"{host}: gres = {card.title} names a type of cards: no node of partition {names} has a resource of that name"
        return [
            _refusal("no-such-gres", message, f"cards are gpu:TYPE:COUNT   --set slurm.gres=gpu:{card.title}")
        ]
    short = f"{most} nodes with" if most else "no node with"
    message = (
        f"{host}: partition {names} has {short} {settings.gres}{f', not {settings.nodes}' if most else ''}"
    )
    return [_refusal("no-such-gres", message, f"its nodes have   {gres_titles(partitions)}")]


def _too_large(settings: SlurmSettings, partitions: Sequence[Partition], host: str) -> Iterable[Finding]:
    """Yield the refusals of CPUs or memory, in `extra`, that too few of the nodes with the gres have."""
    wanted = parse_gres(settings.gres)
    nodes = [
        [alike for alike in one.nodes if all(_has(alike.gres, gres) for gres in wanted)] for one in partitions
    ]
    names = ", ".join(one.name for one in partitions)
    for flag in settings.extra:
        match = _SIZE.fullmatch(flag)
        if match is None:
            continue
        is_memory = match[1].lower() == "mem"
        size = int(match[2]) * (_MIB[match[3].upper()] if is_memory else 1)
        largest = max(_for_nodes(settings.nodes, alike, is_memory=is_memory) for alike in nodes)
        if size <= largest:
            continue
        most = f"{largest / 1024:.3g} GiB" if is_memory else f"{largest:.0f} CPUs"
        has = "has" if settings.nodes == 1 else "have"
        which = "no node" if settings.nodes == 1 else f"no {settings.nodes} nodes"
        equipped = f" with {settings.gres}" if settings.gres else ""
        message = f"{host}: {flag}: {which} of partition {names}{equipped} {has} more than {most}: sbatch may take the job, and never start it"
        less = f"--{match[1]}={largest:.0f}{'M' * is_memory}"
        extra = json.dumps([less if one == flag else one for one in settings.extra])
        yield _refusal("nodes-too-small", message, f"--set {shlex.quote(f'slurm.extra={extra}')}")


def _for_nodes(count: int, nodes: Iterable[NodeSet], *, is_memory: bool) -> float:
    """Return the most CPUs, or MiB of memory, that `count` of the nodes have each.

    The result is infinite if the sizes are unknown. It is also infinite if there are too few nodes, because
    another check refuses those.
    """
    sizes = [(alike.memory_mib if is_memory else alike.cpus, alike.count) for alike in nodes]
    found = 0
    for size, alike in sorted(((size or math.inf, number) for size, number in sizes), reverse=True):
        found += alike
        if found >= count:
            return size
    return math.inf


def _all_gres(partitions: Sequence[Partition]) -> list[Gres]:
    """Return all gres of the partitions' nodes."""
    return [gres for one in partitions for alike in one.nodes for gres in alike.gres]


def _has(there: Sequence[Gres], wanted: Gres) -> bool:
    """Whether a node has enough of a gres, of any type if none is named."""
    kind = wanted.type and wanted.type.lower()
    fitting = [one for one in there if one.name == wanted.name and kind in (None, (one.type or "").lower())]
    return sum(one.count for one in fitting) >= wanted.count


def _types(
    plan: Plan, asked: Submission, settings: SlurmSettings, partitions: Sequence[Partition]
) -> list[Finding]:
    """Refuse partitions that have only cards of other types than the plan's. Note a type that may be the plan's.

    A type that the user names in `gres` is accepted: the job checks its cards when it starts.
    """
    if not asked.cards:
        return []
    profiles = [plan.profile, *(one.plan.profile for one in asked.cards if one.plan is not None)]
    typed = [one.type for one in gpus_of(settings)]
    is_named = any(typed)
    may_come = typed if is_named else [one.type for partition in partitions for one in partition.gpus]
    kinds = [*dict.fromkeys(may_come)]
    if is_named or not kinds or any(_may_be(profiles, kind) for kind in kinds):
        return _unclear(plan, profiles, kinds)
    names = ", ".join(one.name for one in partitions)
    listed = " or ".join(f"gpu:{kind}" for kind in kinds)
    message = f"{plan.host}: partition {names} gives {listed}, and the plan is for {plan.profile.title}"
    mend = f"launch --host {plan.host} --profile auto     plans for the assigned card"
    return [_refusal("card-mismatch", message, mend)]


def _may_be(profiles: Sequence[Profile], kind: str | None) -> bool:
    """Whether cards of a type may be those of a profile: the type names the card, or names no known card."""
    if kind is None or not _CARD.search(kind.lower()):
        return True
    return any(is_of_type(profile, kind) for profile in profiles)


def _unclear(plan: Plan, profiles: Sequence[Profile], kinds: Sequence[str | None]) -> list[Finding]:
    """Return a note if the job may get other cards than the planned ones."""
    others = [kind for kind in kinds if kind is None or not any(is_of_type(one, kind) for one in profiles)]
    if kinds and not others:
        return []
    titles = " or ".join(profile.title for profile in profiles)
    listed = " or ".join(f"gpu:{kind}" if kind else "gpu without a type" for kind in others) or "gpu"
    message = f"{plan.host}: whether its cards ({listed}) are {titles} is not known before the job"
    mend = "the job looks at them before the first attempt, and ends as wrong-card on others"
    return [Finding(level="note", code="card-unknown", message=message, mend=mend)]


def _features(settings: SlurmSettings, partitions: Sequence[Partition], host: str) -> list[Finding]:
    """Refuse a constraint on features that no node of the partitions has."""
    if settings.constraint is None:
        return []
    words = [word for star, word in _WORD.findall(settings.constraint) if not star]
    there = [*dict.fromkeys(name for one in partitions for alike in one.nodes for name in alike.features)]
    missing = [word for word in words if word not in there]
    if not missing or ("|" in settings.constraint and len(missing) < len(words)):
        return []
    names = ", ".join(one.name for one in partitions)
    message = (
        f"{host}: no node of partition {names} has the feature '{missing[0]}'{nearest(missing[0], there)}"
    )
    return [_refusal("no-such-feature", message, f"features   {', '.join(there) or 'none'}")]
