"""Derived profiles: made from the driver's report about an NVIDIA card that no profile names.

Example: a `NVIDIA TITAN V` of capability 7.0 with 12066 MiB is `titan_v_12gb`, titled `TITAN V 12 GB
(derived)`. The shipped profiles follow the same naming rule, so a card keeps its evidence and images when a
profile for it ships later. A derived profile has no peak rates: it claims nothing about speed. A card whose
driver reports no memory shares its host's memory, as in a Jetson: the profile then has the host's memory, if
the probe reports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from launcher.values.facts import Facts, Gpu
from launcher.values.precision import CAPABILITY
from launcher.values.profile import DERIVED, MIN_SHARE, Profile

SIZES_GB = (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 18, 20, 22, 24, 32, 40, 48, 64, 72, 80, 84, 94, 96, 128, 141, 144, 180, 186, 288)  # fmt: skip
"""The sizes of cards and slices on sale. A driver reports up to 7 % less: ECC takes a sixteenth of GDDR memory."""
MIN_MIB, MAX_MIB = 128, 1 << 24
"""The limits of a card's memory. A value outside them is rejected, because a host's report is untrusted data."""
MAX_CHARS = 36
_NOT_THE_MODEL = re.compile(
    r"nvidia|geforce|tesla|quadro|grid|gpu|generation|edition|server|workstation|max|q"  # maker, line, edition
    r"|pcie|sxm\d?|nvl|fhhl|dgxs|ac|hbm\d?e?|\d+gb?",  # form, cooling, kind and size of a memory
    re.IGNORECASE,
)


def derived(facts: Facts, known: Iterable[Profile]) -> tuple[Profile, ...]:
    """Return a profile for each kind of card on the host that no known profile names.

    The card's capability and memory must be known. For another form of a known card, such as a new `NVIDIA
    B300 PCIe`, the result is the known profile with one more name.
    """
    named = {profile.name: profile for profile in known}
    found: dict[str, Profile] = {}
    for gpu in facts.gpus:
        if any(profile.is_reported_as(gpu.name, gpu.memory_mib) for profile in named.values()):
            continue
        if (profile := _profile_of(gpu, facts)) is not None:
            alike = found.get(profile.name) or named.get(profile.name, profile)
            alike = alike if alike.capability == profile.capability else profile
            names = tuple(dict.fromkeys((*alike.probe_names, gpu.name)))
            found[profile.name] = alike.model_copy(update={"probe_names": names})
    return tuple(found.values())


def profile_name(reported: str, memory_mib: float) -> str:
    """Return the profile name of a card from the driver's report: its model, and its memory size in GB."""
    model = "_".join(_model_words(reported)).lower()[:MAX_CHARS].strip("_") or "card"
    return f"{model}_{size_gb(memory_mib):g}gb"


def size_gb(memory_mib: float) -> float:
    """Return the size in GB under which a card with this reported memory is sold."""
    gib = memory_mib / 1024
    return next((size for size in SIZES_GB if MIN_SHARE * size <= gib <= size), round(gib, 1))


def host_mib(facts: Facts) -> float | None:
    """Return the host's memory in MiB, which a card without its own memory shares; None if unknown."""
    return None if facts.memory_gb is None else facts.memory_gb * 1e9 / 2**20


def _profile_of(gpu: Gpu, facts: Facts) -> Profile | None:
    """Return a card's profile; None if its capability or memory is unknown. A slice (MIG) never shares the host's memory."""
    is_unified = gpu.memory_mib is None and not gpu.mig
    memory = host_mib(facts) if is_unified else gpu.memory_mib
    is_sized = memory is not None and MIN_MIB <= memory <= MAX_MIB
    if memory is None or not is_sized or not re.fullmatch(CAPABILITY, gpu.capability or ""):
        return None
    size = size_gb(memory)
    title = " ".join(_model_words(gpu.name))[:MAX_CHARS] or "GPU"
    return Profile(
        name=profile_name(gpu.name, memory),
        title=f"{title} {size:g} GB {DERIVED}",
        kind="cuda",
        capability=gpu.capability,
        memory_gb=size,
        memory_mib=memory,
        unified=is_unified,
        probe_names=(gpu.name,),
    )


def _model_words(reported: str) -> list[str]:
    """Return the words of a reported name that identify the model, e.g. `RTX 6000 Ada`."""
    words = re.findall(r"[A-Za-z0-9]+(?:\.[A-Za-z0-9]+)*", reported)
    return [word for word in words if not _NOT_THE_MODEL.fullmatch(word)]
