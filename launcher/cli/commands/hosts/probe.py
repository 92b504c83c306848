"""probe: a host's cards, space, engines and interpreters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import AcceptFlag, ColorOption, HostOption, JsonFlag, VerboseFlag
from launcher.cli.output.figures import age_text, size_text
from launcher.cli.output.say import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.values.facts import Facts, Gpu, Holder
    from launcher.values.reported.cluster import Cluster


def probe(
    host: HostOption = None,
    _color: ColorOption = None,
    _verbose: VerboseFlag = False,
    _accept: AcceptFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Show what a host has: cards, space, engines, interpreters; of an account of Kaggle's what is expected there, and its hours.

    Examples:
        launch probe --host lab
        launch probe --host lab --json > lab.json
    """
    from launcher.cli.output.wait_notice import waiting_for
    from launcher.config import resolve
    from launcher.errors import RefusedError, UnknownNameError
    from launcher.runs.launch.kaggle_account import quota_or_why
    from launcher.runs.launch.probing import (
        NO_JOB,
        cards_there,
        choose_profile,
        expected_choice,
        profiles_named,
    )
    from launcher.runs.launch.probing import probe as ask
    from launcher.runs.run_desk import connect
    from launcher.values.profile import DERIVED

    place = resolve.host(host)
    with waiting_for(place.name), connect(place) as desk:
        facts = ask(desk, place)
    hours = quota_or_why(place.kaggle) if place.kaggle is not None else None
    problem: list[str] = []
    try:
        if place.slurm is not None:
            facts, chosen, why = cards_there(place, NO_JOB, profiles_named(place), None, facts)
        else:
            known = expected_choice(place, place.kaggle).profiles[:1] if place.kaggle is not None else ()
            chosen, why = choose_profile(known, facts)
        profile: str | None = chosen.name
        shown = f"{profile} {DERIVED}" if chosen.is_derived else chosen.name
    except (UnknownNameError, RefusedError) as error:
        profile, shown, why, problem = None, "-", "", str(error).split("\n")
    if as_json:
        from launcher.cli.json_output.host_shapes import Probe
        from launcher.cli.output.answer import answer

        answer(Probe(host=place.name, profile=profile, quota=hours, **dict(facts)))
        return
    where = f"({facts.user}@{facts.hostname}, {facts.platform} {facts.machine})"
    ids = f"host {facts.host_id}, boot {facts.boot_id}"
    if hours is not None:
        where, ids = "(an account of Kaggle's)", f"place {facts.host_id}"
    lines = [
        ("host", f"{place.name}   {where}"),
        ("ids", ids),
        ("profile", f"{shown}{f'   {why}' if why else ''}"),
        *(rows(facts) if hours is None else _expected_rows(facts, hours)),
    ]
    say(*(f"{name:<8} {value}" for name, value in lines), *problem)


def _expected_rows(facts: Facts, hours: str) -> Iterator[tuple[str, str]]:
    """Yield what is expected of a machine of Kaggle's, and its account's hours: nothing can be probed before a session."""
    from launcher.backends.kaggle.kaggle_machines import DATE, IMAGE
    from launcher.backends.kaggle.kaggle_running import UNTRIED

    yield "expected", f"nothing can be probed before a session: this is what was read until {DATE}"
    yield "cpus", f"{facts.cpus}, {facts.memory_gb} GB"
    yield "root", f"{facts.root}   {facts.room_title}"
    torch = f"torch {IMAGE.torch} (as of {IMAGE.torch_date})" if IMAGE.torch is not None else "torch unknown"
    yield "env", f"Python {IMAGE.python} (as of {IMAGE.date}), {torch}"
    for gpu in facts.gpus:
        yield f"gpu {gpu.index}", f"{gpu.name}, capability {gpu.capability}, {gpu.memory_mib or 0:,.0f} MiB"
    if not facts.gpus:
        yield "gpu", "none"
    yield "hours", hours
    yield "", UNTRIED


def rows(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each thing that a host has."""
    from launcher.planning.placement import release_advice

    of_login = "" if facts.slurm is None else "   (the login node's)"
    yield "cpus", f"{facts.cpus}, {facts.memory_gb} GB{of_login}"
    disk, python = facts.file_system, facts.interpreter
    locks = {True: "locks seen by all machines", False: "locks of this machine alone"}
    are_told = facts.slurm is not None and disk.is_shared and disk.locks_cross is not None
    marks = {
        "shared": disk.is_shared,
        locks[disk.locks_cross is True]: are_told,
        "read-only": disk.is_read_only,
        "noexec": disk.is_noexec,
    }
    kind = ", ".join(
        [disk.kind or "file system unknown", *(word for word, applies in marks.items() if applies)]
    )
    inodes = f", {disk.free_inodes:,} inodes" if disk.free_inodes is not None else ""
    yield "root", f"{facts.root}   {facts.room_title}{inodes}   ({kind})"
    if disk.error:
        yield "", f"cannot be used: {disk.error}"
    yield "env", f"{python.path}   {python.version or python.error}" if python else "-"
    for interpreter in facts.pythons or ():
        ensurepip = "" if interpreter.has_ensurepip else "   (no ensurepip)"
        yield "python", f"{interpreter.path}   {interpreter.version}{ensurepip}"
    if facts.uv is not None:
        yield "uv", f"{facts.uv.path}   {facts.uv.version}"
    for engine in facts.engines:
        yield (
            engine.name,
            f"{engine.version or ''} {engine.socket or engine.program}   {engine.error or ''}".strip(),
        )
    if facts.slurm is not None:
        yield from _cluster_rows(facts.slurm)
        return
    if facts.is_unused_login:
        yield "slurm", 'a login node of a cluster: its runs are jobs with   kind = "slurm"   in its table'
    for gpu in facts.gpus:
        yield f"gpu {gpu.index}", _card(gpu, facts)
        for holder in gpu.holders:
            yield "", f"  {_holder(holder)} holds GPU {gpu.index}: {release_advice(holder, facts)}"
            if holder.means:
                yield "", f"    {holder.means}"
    if not facts.gpus or facts.gpu_error:
        none = facts.no_card if facts.other_gpus else "none"
        yield "gpu", facts.gpu_error or ("Apple GPU" if facts.has_apple_gpu else none)
    if facts.holders_error:
        yield "", f"the processes on them are unknown: {facts.holders_error}"
    if facts.nvidia_mps:
        yield "", "NVIDIA's MPS daemon is running: processes of one user share an exclusive card"


def _cluster_rows(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield a cluster's own facts, and a line for the nodes of each partition that are alike."""
    from launcher.backends.slurm.slurm_gate import duration_text
    from launcher.runs.launch.probing import cluster_title

    accounting = "keeps accounts" if cluster.has_accounting else "keeps no accounts"
    yield "cluster", f"{cluster_title(cluster).removeprefix('cluster ')}, {accounting}"
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
            counts = [f"{alike.idle} idle", *(f"{count} {word}" for word, count in out.items() if count > 0)]
            yield "", f"  {alike.count} with {', '.join(filter(None, words))}: {', '.join(counts)}"
    yield "yours", f"{cluster.running or 0} jobs running, {cluster.queued or 0} waiting"


def _card(gpu: Gpu, facts: Facts) -> str:
    memory = f"{gpu.memory_mib:,.0f} MiB" if gpu.memory_mib else "memory unknown"
    words = [gpu.name, f"capability {gpu.capability}", memory, f"driver {gpu.driver}"]
    if gpu.memory_used_mib is not None:
        words.insert(3, f"{gpu.memory_used_mib:,.0f} used")
    if gpu.compute_mode not in (None, "default"):
        words.append(str(gpu.compute_mode))
    words += ["MIG"] if gpu.mig else []
    words += [f"{gpu.ecc_errors} uncorrected ECC errors"] if gpu.ecc_errors else []
    words += [f"Xid {', '.join(map(str, dict.fromkeys(gpu.xids)))}"] if gpu.xids else []
    held = "held" if gpu.is_held else "holders unknown" if facts.holders_error else "free"
    return f"{', '.join(words)}: {held}"


def _holder(holder: Holder) -> str:
    """Return a holder with its memory and age."""
    more = [size_text(holder.memory_mib * 2**20)] if holder.memory_mib is not None else []
    more += [f"for {age_text(holder.age_s)}"] if holder.age_s is not None else []
    return f"{holder.title.removesuffix(')')}{''.join(f', {detail}' for detail in more)})"
