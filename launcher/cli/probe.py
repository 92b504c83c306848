"""probe: what a host is and has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from launcher.cli.say import say
from launcher.cli.words import AcceptFlag, HostOption, JsonFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.spec.facts import Facts


def probe(host: HostOption = None, _accept: AcceptFlag = False, as_json: JsonFlag = False) -> None:
    """Ask a host what it is: cards, room, engines, interpreters.

    Examples:  launch probe --host lab     launch probe --host lab --json > lab.json
    """
    from launcher.errors import UnknownNameError
    from launcher.hosts import connect
    from launcher.runs import resolve
    from launcher.runs.launching import PROBE_VERSION, choose_profile
    from launcher.runs.launching import probe as ask

    place = resolve.host(host)
    with connect(place) as agent:
        facts = ask(agent, place)
    problem: list[str] = []
    try:
        chosen, why = choose_profile((), facts)
        profile: str | None = chosen.name
    except UnknownNameError as error:
        profile, why, problem = None, "", str(error).split("\n")
    if as_json:
        told = facts.model_dump(mode="json")
        print(json.dumps({"version": PROBE_VERSION, "host": place.name, "profile": profile, **told}))
        return
    shown = [
        ("host", f"{place.name}   ({facts.user}@{facts.hostname}, {facts.platform} {facts.machine})"),
        ("ids", f"host {facts.host_id}, boot {facts.boot_id}"),
        ("profile", f"{profile or '-'}{f'   {why}' if why else ''}"),
        *rows(facts),
    ]
    say(*(f"{name:<8} {value}" for name, value in shown), *problem)


def rows(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield what a host has, each thing with its name, for people."""
    from launcher.runs.launching import room_text

    yield "cpus", f"{facts.cpus}, {facts.memory_gb} GB"
    disk, python = facts.file_system, facts.interpreter
    marks = {"shared": disk.is_shared, "read-only": disk.is_read_only, "noexec": disk.is_noexec}
    kind = ", ".join([disk.kind or "file system not told", *(word for word, is_so in marks.items() if is_so)])
    inodes = f", {disk.free_inodes:,} inodes" if disk.free_inodes is not None else ""
    yield "root", f"{facts.root}   {room_text(facts)}{inodes}   ({kind})"
    if disk.error:
        yield "", f"cannot be used: {disk.error}"
    yield "env", f"{python.path}   {python.version or python.error}" if python else "-"
    for one in facts.pythons or ():
        yield "python", f"{one.path}   {one.version}"
    for engine in facts.engines:
        yield (
            engine.name,
            f"{engine.version or ''} {engine.socket or engine.program}   {engine.error or ''}".strip(),
        )
    for gpu in facts.gpus:
        memory = f"{gpu.memory_mib:,.0f} MiB" if gpu.memory_mib else "memory not told"
        yield f"gpu {gpu.index}", f"{gpu.name}, capability {gpu.capability}, {memory}, driver {gpu.driver}"
    if not facts.gpus:
        yield "gpu", facts.gpu_error or ("Apple GPU" if facts.has_apple_gpu else "none")
