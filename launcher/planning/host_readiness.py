"""The prerequisites of launches on a machine, as rows from its facts. The checks and their messages are the gate's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.planning.gate import (
    VENV_MEND,
    card_faults,
    engine_findings,
    interpreter_findings,
    logout_findings,
    room_findings,
)
from launcher.planning.placement import (
    best_card,
    engine,
    is_closed,
    prefers_containers,
    requested_engines,
    why_unusable,
)
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.plan import Finding
from launcher.values.prerequisite import Prerequisite
from launcher.values.profile import Profile


def machine_rows(host: Host, facts: Facts, named: Sequence[Profile]) -> Iterator[Prerequisite]:
    """Yield the rows of a machine that runs jobs itself. `named` are the cards that its table names."""
    yield from software_rows(host, facts)
    yield _container_row(host, facts)
    yield from _card_rows(host, facts, named)
    yield disk_row(host, facts)
    if facts.has_slurm:
        words = "it is a login node of a Slurm cluster, and a run would train on it"
        yield Prerequisite.lacking("slurm", words, f'kind = "slurm"     in [hosts.{host.name}]')
    yield from (_of_finding("logout", one, host) for one in logout_findings(host.name, facts))


def software_rows(host: Host, facts: Facts) -> Iterator[Prerequisite]:
    """Yield the row of the Python for jobs, and the row of new environments for their packages."""
    python = facts.interpreter
    if refused := interpreter_findings(host.name, facts):
        yield _of_finding("python", refused[0], host)
    elif python is None or python.version is None:
        yield Prerequisite.unknown("python", "its version is not known")
    else:
        yield Prerequisite.ok("python", f"{python.version}   {python.path}")
    yield _environment_row(host, facts)


def disk_row(host: Host, facts: Facts) -> Prerequisite:
    """Return the row of the folder for runs and its free space."""
    if refused := room_findings(facts):
        return _of_finding("disk", refused[0], host)
    words = f"{facts.room_title}   {facts.root}"
    return Prerequisite.unknown("disk", words) if facts.room_gb is None else Prerequisite.ok("disk", words)


def _environment_row(host: Host, facts: Facts) -> Prerequisite:
    if host.environment is not None:
        if facts.interpreter is not None and facts.interpreter.error:
            return Prerequisite.lacking(
                "environment", f"yours, {host.environment}: {facts.interpreter.error}"
            )
        return Prerequisite.ok("environment", f"yours, {host.environment}")
    if facts.uv is not None:
        return Prerequisite.ok("environment", f"made with uv {facts.uv.version or ''}".rstrip())
    pythons = [one for one in (facts.interpreter, *(facts.pythons or ())) if one is not None]
    if makers := [one for one in pythons if one.has_ensurepip]:
        return Prerequisite.ok("environment", f"made with venv   {makers[0].path}")
    if _runs_containers(host, facts):
        return Prerequisite.ok("environment", "none can be made: packages are installed in containers")
    if facts.pythons is None:
        return Prerequisite.unknown("environment", "the other Pythons there did not answer")
    return Prerequisite.lacking(
        "environment", "none can be made: no Python has ensurepip, and no uv", VENV_MEND
    )


def _runs_containers(host: Host, facts: Facts) -> bool:
    """Whether a job with requirements runs in a container on this host, if its command line names no runtime."""
    return host.runtime == "docker" or (host.runtime == "auto" and prefers_containers(host, facts))


def _may_run_containers(host: Host) -> bool:
    return host.runtime == "auto" and not host.is_local and host.environment is None


def _container_row(host: Host, facts: Facts) -> Prerequisite:
    """Return the row of Docker: lacking if every run there needs Docker, unknown if runs could use it but it does not answer."""
    if (usable := engine(host, facts)) is not None:
        title = f"Podman {usable.version}" if usable.name == "podman" else usable.version
        return Prerequisite.ok("docker", f"{title}   {usable.socket}")
    wanted = host.engine or "docker"
    present = [one for one in requested_engines(host, facts) if wanted in (one.name, one.socket)]
    refusal = engine_findings(host.name, facts, host)[0]
    is_stopped = any(one.name == "docker" and one.error is not None and not is_closed(one) for one in present)
    start = "if it is stopped   sudo systemctl start docker     there" if is_stopped else ""
    if host.runtime == "docker":
        words = _without_name(refusal.message, host).replace("\n  ", "; ")
        return Prerequisite.lacking("docker", words, f"{start}\n{refusal.mend}")
    why = f"cannot be used: {why_unusable(present[0], host)}" if present else "none"
    words = f"{why}; jobs run as processes"
    if present and _may_run_containers(host):
        return Prerequisite.unknown("docker", words, start or refusal.mend)
    return Prerequisite.ok("docker", words)


def _card_rows(host: Host, facts: Facts, named: Sequence[Profile]) -> Iterator[Prerequisite]:
    look = f"launch probe --host {host.name}"
    wanted = [profile for profile in named if profile.kind == "cuda"]
    if facts.gpu_error:
        yield Prerequisite.lacking(
            "cards", facts.gpu_error, f"the driver's own words   {host.by_hand('nvidia-smi')}"
        )
    elif wanted and len(wanted) == len(named) and best_card(facts, wanted) is None:
        words = f"{facts.cards or facts.no_card}, and its table names profile {host.profile}"
        yield Prerequisite.lacking(
            "cards", words, f'profile = "auto"     in [hosts.{host.name}]     its cards   {look}'
        )
    elif facts.gpus and all(gpu.compute_mode == "prohibited" for gpu in facts.gpus):
        mend = f"its owner types   sudo nvidia-smi -c DEFAULT     its cards   {look}"
        yield Prerequisite.lacking("cards", f"{facts.cards}: compute mode prohibited", mend)
    elif facts.gpus:
        driver = facts.gpus[0].driver
        yield Prerequisite.ok("cards", facts.cards_with_held + (f", driver {driver}" if driver else ""))
    else:
        yield Prerequisite.ok(
            "cards", "Apple GPU" if facts.has_apple_gpu else f"{facts.no_card}, {facts.cpus} CPUs"
        )
    if facts.holders_error:
        yield Prerequisite.unknown(
            "processes", f"the processes on the cards are unknown: {facts.holders_error}"
        )
    for gpu in facts.gpus:
        if faults := card_faults(gpu):
            yield Prerequisite.unknown(f"GPU {gpu.index}", f"may be failing: {', '.join(faults)}")


def _of_finding(name: str, finding: Finding, host: Host) -> Prerequisite:
    return Prerequisite.lacking(name, _without_name(finding.message, host), finding.mend)


def _without_name(message: str, host: Host) -> str:
    return message.removeprefix(f"{host.name}: ")
