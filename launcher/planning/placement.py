"""Placement: the profile that matches a host's cards, the cards that a run gets, and its runtime.

Example: on a host with two L40S and a TITAN RTX, a job without `--profile` gets the profile `l40s` (the most
memory) and the free L40S. It runs in a container if the host has a usable engine, else natively.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

from launcher.backends.kinds import own_runtime
from launcher.errors import UnknownNameError, UsageError
from launcher.planning.derived_profile import derived, host_mib
from launcher.values.facts import Engine, Facts, Gpu, Holder
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import CardPlan, SegmentCards
from launcher.values.profile import Profile

_PROCESSES = re.compile(r" --(?:nproc[-_]per[-_]node|num[-_]processes)[ =]([0-9]{1,4})(?: |$)")
_UNPICKLES = re.compile(r"--standalone\b|--rdzv[-_]backend[ =]c10d\b")
OLDEST_ENGINES = {
    "docker": ((19, 3), "19.03 is the first with API 1.40"),  # it gives GPUs to containers
    "podman": ((4, 3), "4.3 is the oldest that was tried"),
}
"""The oldest supported version of each engine, and why."""


def choose_gpus(profile: Profile, facts: Facts, count: int) -> tuple[str, ...]:
    """Return the UUIDs of `count` of the host's cards that match the profile; empty for a profile without cards.

    Cards that accept a new context come first, free ones before held ones, then by index.
    """
    return tuple(gpu.uuid for gpu in sorted(cards_of(profile, facts), key=_rank(facts)))[:count]


def cards_of(profile: Profile, facts: Facts) -> tuple[Gpu, ...]:
    """Return the host's cards that match the profile."""
    return tuple(gpu for gpu in facts.gpus if profile.is_reported_as(gpu.name, gpu.memory_mib))


def expected_card(profile: Profile, index: int, name: str, driver: str | None = None) -> Gpu:
    """Return the card expected for a profile on a host that cannot be probed before a run, with the profile's memory."""
    size = profile.memory_bytes
    return Gpu(
        index=index,
        uuid=f"expected-{index}",
        name=name,
        capability=profile.capability,
        memory_mib=None if size is None else size / 2**20,
        driver=driver,
    )


def is_unavailable(gpu: Gpu, facts: Facts) -> bool:
    """Whether a card rejects launcher's processes: its compute mode is prohibited, or exclusive while a foreign process holds it."""
    return bool(strangers_on(gpu)) if is_exclusive(gpu, facts) else gpu.compute_mode == "prohibited"


def is_exclusive(gpu: Gpu, facts: Facts) -> bool:
    """Whether a card accepts one process at a time. NVIDIA's MPS daemon shares an exclusive card."""
    return gpu.compute_mode == "exclusive-process" and not facts.nvidia_mps


def strangers_on(gpu: Gpu) -> tuple[Holder, ...]:
    """Return a card's live holders that belong to none of launcher's runs, or that a run has handed over."""
    return tuple(holder for holder in gpu.holders if holder.is_stranger and holder.state != "Z")


def describe_holders(gpu: Gpu, facts: Facts) -> str:
    """Return why a card rejects launcher's processes and who can release it, one line for each holder."""
    if gpu.compute_mode == "prohibited":
        return f"GPU {gpu.index}: compute mode prohibited"
    lines = [
        f"{holder.title} holds GPU {gpu.index}: {release_advice(holder, facts)}"
        for holder in strangers_on(gpu)
    ]
    return "\n  ".join(lines)


def release_advice(holder: Holder, facts: Facts) -> str:
    """Return who can end the process that holds a card, with the command if the reader can do it."""
    if holder.receiver is not None:
        return f"handed over to {holder.receiver} by run {holder.run}: end it there, or   kill {holder.pid}"
    if holder.run is not None and not holder.is_stranger:
        short = holder.run.rpartition("-")[2]
        if holder.ownership == "ours-live":
            return f"run {holder.run}   launch attach {short} · launch stop {short}"
        return f"left over from run {holder.run}"
    if holder.state == "D":
        return "it cannot be killed until its pending I/O ends"
    if holder.user is not None and holder.user == facts.user:
        return (
            f"yours, of no run; to end it   kill {'-KILL ' if holder.state in ('T', 't') else ''}{holder.pid}"
        )
    who = holder.user or (f"uid {holder.uid}" if holder.uid is not None else "its owner")
    return f"ask {who} to end it"


def _rank(facts: Facts) -> Callable[[Gpu], tuple[bool, bool, int]]:
    return lambda gpu: (is_unavailable(gpu, facts), gpu.is_held, gpu.index)


def requested_gpus(asked: str | None, ranks: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of requested cards, and their UUIDs if given; `asked` is a number, UUIDs, or None.

    Raises UsageError for anything else.
    """
    if asked is None:
        return ranks, ()
    if asked.isascii() and asked.isdigit() and int(asked):
        return int(asked), ()
    names = tuple(dict.fromkeys(one.strip() for one in asked.split(",")))
    if all(re.fullmatch(r"(GPU|MIG)-[A-Za-z0-9/-]+", one) for one in names):
        return len(names), names
    raise UsageError(
        f"--gpus {asked}: how many, or which   --gpus 1     or   --gpus GPU-5f2c…   (launch probe --json)"
    )


def requested_processes(command: Sequence[str]) -> int | None:
    """Return the number of processes that a command makes torchrun or accelerate start; None without a number."""
    found = _PROCESSES.search(_options_of_ranks(command))
    return int(found[1]) if found else None


def unpickling_option(command: Sequence[str]) -> str | None:
    """Return torchrun's option that makes its agents unpickle data from anyone who reaches their port; else None."""
    found = _UNPICKLES.search(_options_of_ranks(command))
    return found[0] if found else None


def _options_of_ranks(command: Sequence[str]) -> str:
    """Return the words of torchrun or accelerate before the script, joined by spaces; empty for other programs."""
    program = command[0].rpartition("/")[2]
    if program in ("python", "python3") and command[1:2] == ("-m",):
        program = "".join(command[2:3]).split(".")[0]
    if program not in ("torchrun", "torch", "accelerate"):
        return ""
    return " ".join(itertools.takewhile(lambda word: not word.endswith(".py"), command))


def best_card(facts: Facts, profiles: Iterable[Profile]) -> tuple[Profile, Gpu] | None:
    """Return the host's best card that matches one of the profiles; None if no card does.

    The best card has the most memory, then the higher capability. A profile of one card comes before a profile of
    several cards; ties are in the order of `choose_gpus`.
    """
    rank = _rank(facts)
    named = [(profile, gpu) for profile in profiles for gpu in sorted(cards_of(profile, facts), key=rank)]
    return max(
        named,  # max returns the first of equal ones
        key=lambda pair: (pair[0].memory_gb or 0, pair[0].compute or (0, 0), -pair[0].count),
        default=None,
    )


def match_profile(facts: Facts, profiles: Iterable[Profile]) -> Profile:
    """Return the profile of the host's best card, derived if no profile names it. Without a card, it is `mps` or `cpu`.

    Raises UnknownNameError if the host has cards but only their names are known.
    """
    known = list(profiles)
    if best := best_card(facts, [*known, *derived(facts, known)]):
        return best[0]
    if not facts.gpus:
        kind = "mps" if facts.has_apple_gpu else "cpu"
        return next(profile for profile in known if profile.name == kind)
    gpu = facts.gpus[0]
    lacks = "memory" if gpu.capability else "capability"
    driver = f"driver {gpu.driver}" if gpu.driver else "its driver"
    raise UnknownNameError(
        f"GPU {gpu.index} is a '{gpu.name}', which no profile names, and {driver} does not report its {lacks}\n"
        f'  write profiles/NAME.toml with probe_names = ["{gpu.name}"]; it begins as   launch profile show l40s --toml'
    )


def as_probed(profile: Profile, facts: Facts, named: Sequence[str] = ()) -> Profile:
    """Return a profile with the probed memory of a host's cards: the smallest memory of the cards that a run may get.

    `named` are the UUIDs of --gpus. Without probed memory the profile stays unchanged.
    """
    if profile.kind == "mps":
        memory = apple_gpu_mib(facts)
    elif profile.unified:
        memory = host_mib(facts) if cards_of(profile, facts) else None
    else:
        cards = [gpu for gpu in cards_of(profile, facts) if not named or gpu.uuid in named]
        memory = min((gpu.memory_mib for gpu in cards if gpu.memory_mib), default=None)
    return profile if memory is None else profile.model_copy(update={"memory_mib": memory})


def apple_gpu_mib(facts: Facts) -> float | None:
    """Return the memory in MiB that a Mac's GPU may use: two thirds of up to 36 GiB, three quarters of more.

    That is Metal's recommendation (`recommendedMaxWorkingSetSize`) unless `sysctl iogpu.wired_limit_mb` is
    set.
    """
    if not facts.has_apple_gpu or facts.memory_gb is None or facts.memory_gb <= 0:
        return None
    share = 2 / 3 if facts.memory_gb < 39 else 3 / 4
    return round(facts.memory_gb * 1e9 * share / 2**20)


def card_choice_reason(profile: Profile, facts: Facts) -> str:
    """Return why this profile was chosen among a host's kinds of card; empty if it has only one kind."""
    best = best_card(facts, [profile])
    if best is None or len({(gpu.name, gpu.memory_mib) for gpu in facts.gpus}) < 2:
        return ""
    return (
        f"{profile.title} (GPU {best[1].index}) is chosen: it has the most memory of the cards with a profile"
    )


def runtime(profile: Profile, host: Host, job: Job, facts: Facts) -> str:
    """Return the runtime of a job on a host: the host's setting, or the best one for `auto`.

    For `auto`, see `prefers_containers`. Some kinds of host have only one runtime.
    With `auto` these run natively: this machine, Apple's GPU, a host with an `environment`, and a job without
    requirements. A job with its own image runs in a container except on Apple's GPU.
    """
    if (own := own_runtime(host.kind)) is not None:
        return own
    if host.runtime != "auto":
        return host.runtime
    if profile.kind == "mps":
        return "native"
    if job.image is not None:
        return "docker"
    return "docker" if job.requirements and prefers_containers(host, facts) else "native"


def prefers_containers(host: Host, facts: Facts) -> bool:
    """Whether `auto` selects a container for a job with requirements. Podman counts only if `engine` names it."""
    found = engine(host, facts)
    if found is None or host.is_local or host.environment is not None:
        return False
    return found.name == "docker" or host.engine is not None


def engine(host: Host, facts: Facts) -> Engine | None:
    """Return the engine that would run a container on a host; None if no engine is usable."""
    return next((one for one in requested_engines(host, facts) if why_unusable(one, host) is None), None)


def requested_engines(host: Host, facts: Facts) -> tuple[Engine, ...]:
    """Return the host's engines that its `engine` setting allows: all, or those with this name or socket."""
    return tuple(one for one in facts.engines if host.engine in (None, one.name, one.socket))


def why_unusable(engine: Engine, host: Host) -> str | None:
    """Return why an engine is unusable; None if it is usable. With `sudo`, a socket closed to this user is usable."""
    if engine.name not in OLDEST_ENGINES:
        return "launch does not know this engine"
    if engine.error is not None:
        return None if host.sudo and is_closed(engine) else engine.error
    version = re.match(r"(\d{1,9})\.(\d{1,9})", engine.version or "")
    if version is None:
        return "it does not report its version"
    oldest, reason = OLDEST_ENGINES[engine.name]
    if (int(version[1]), int(version[2])) < oldest:
        return f"version {engine.version} is too old: {reason}"
    return None


def is_closed(engine: Engine) -> bool:
    """Whether an engine has a socket that this user may not open."""
    return engine.socket is not None and engine.error == "Permission denied"


def possible_cards(profile: Profile, plan: CardPlan | None = None) -> SegmentCards:
    """Return a profile's cards as candidates. `plan` has the values that replace the run's plan on these cards."""
    return SegmentCards(
        names=profile.probe_names,
        memory_mib=profile.memory_limits_mib,
        count=profile.count,
        title=profile.title,
        plan=plan,
    )
