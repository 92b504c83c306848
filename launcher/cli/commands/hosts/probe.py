"""probe: show a host's cards, space, engines and interpreters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.cli.options import HostOption, JsonFlag
from launcher.cli.output.figures import age_text, size_text
from launcher.cli.output.say import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.backends.base.probing import Probing
    from launcher.values.facts import Facts, Gpu, Holder


def probe(
    host: HostOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a host's cards, space, engines and interpreters. A Kaggle account shows its expected machine and its hours.

    Examples:
        launch probe --host lab
        launch probe --host lab --json > lab.json
    """
    from launcher.backends.base.probing import NO_JOB
    from launcher.backends.registry import backend_of
    from launcher.cli.output.wait_notice import waiting_for
    from launcher.config.lookup import Lookup
    from launcher.errors import RefusedError, UnknownNameError
    from launcher.runs.run_client import connect
    from launcher.values.profile import DERIVED

    lookup = Lookup()
    place = lookup.host(host)
    probing = backend_of(place).probing
    with waiting_for(place.name), connect(place) as client:
        facts = probing.probe(client, place)
    quota = probing.quota(place)
    problem: list[str] = []
    try:
        facts, chosen, why = probing.best_cards(place, NO_JOB, facts, lookup)
        profile: str | None = chosen.name
        shown = f"{profile} {DERIVED}" if chosen.is_derived else chosen.name
    except (UnknownNameError, RefusedError) as error:
        profile, shown, why, problem = None, "-", "", str(error).split("\n")
    if as_json:
        from launcher.cli.json_output.host_shapes import Probe
        from launcher.cli.output.answer import answer

        answer(Probe(host=place.name, profile=profile, quota=quota, **dict(facts)))
        return
    where, ids = probing.titles(facts)
    lines = [
        ("host", f"{place.name}   {where}"),
        ("ids", ids),
        ("profile", f"{shown}{f'   {why}' if why else ''}"),
        *rows(probing, facts, quota),
    ]
    say(*(f"{name:<8} {value}" for name, value in lines), *problem)


def rows(probing: Probing, facts: Facts, quota: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each property of a host."""
    if not probing.is_expected_only:
        yield from _machine_rows(facts, probing.whose)
    own = tuple(probing.rows(facts, quota))
    yield from own or _card_rows(probing, facts)


def _machine_rows(facts: Facts, whose: str) -> Iterator[tuple[str, str]]:
    """Yield a machine's properties other than cards. `whose` names a machine that does not run jobs itself."""
    yield "cpus", f"{facts.cpus}, {facts.memory_gb} GB{f'   ({whose})' if whose else ''}"
    disk, python = facts.file_system, facts.interpreter
    locks = {True: "locks seen by all machines", False: "locks of this machine alone"}
    are_told = bool(whose) and disk.is_shared and disk.locks_cross is not None
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


def _card_rows(probing: Probing, facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the cards of a machine, and the processes that hold them."""
    from launcher.planning.placement import release_advice

    if probing.is_unused_login(facts):
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
