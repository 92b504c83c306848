"""Which profile a host's probe means, and which of its cards a run gets."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.errors import UnknownNameError
from launcher.spec.facts import Facts, Gpu
from launcher.spec.profile import Profile


def choose_gpus(profile: Profile, facts: Facts, count: int) -> tuple[str, ...]:
    """Return the UUIDs of the host's first `count` cards that the profile names; none for a profile without cards."""
    named = (gpu.uuid for gpu in facts.gpus if profile.is_reported_as(gpu.name, gpu.memory_mib))
    return tuple(named)[:count]


def best_card(facts: Facts, profiles: Iterable[Profile]) -> tuple[Profile, Gpu] | None:
    """Return the host's best card that one of the profiles names; None where there is no such card.

    The best is the one with the most memory, then the higher capability; one card before several, then the lower index.
    """
    named = [
        (profile, gpu)
        for profile in profiles
        for gpu in facts.gpus
        if profile.is_reported_as(gpu.name, gpu.memory_mib)
    ]
    return max(
        named,
        key=lambda pair: (
            pair[0].memory_gb or 0,
            pair[0].compute or (0, 0),
            -pair[0].count,
            -pair[1].index,
        ),
        default=None,
    )


def match_profile(facts: Facts, profiles: Iterable[Profile]) -> Profile:
    """Return the profile of the host's best card, or `mps` or `cpu` where it has none.

    Raises UnknownNameError for a host of cards that no profile names.
    """
    known = list(profiles)
    if best := best_card(facts, known):
        return best[0]
    if not facts.gpus:
        kind = "mps" if facts.has_apple_gpu else "cpu"
        return next(profile for profile in known if profile.name == kind)
    gpu = facts.gpus[0]
    raise UnknownNameError(
        f"GPU {gpu.index} is a '{gpu.name}' (capability {gpu.capability}, {gpu.memory_mib} MiB), which no profile names\n"
        f'  write profiles/NAME.toml with probe_names = ["{gpu.name}"]; `launch profile show l40s` is an example'
    )


def why_taken(profile: Profile, facts: Facts) -> str:
    """Return why this profile of a host's several kinds of card was taken, in a few words; nothing for one kind."""
    best = best_card(facts, [profile])
    if best is None or len({(gpu.name, gpu.memory_mib) for gpu in facts.gpus}) < 2:
        return ""
    return f"{profile.title} (GPU {best[1].index}) is taken: the most memory of those that we know"
