"""Card data from the driver's library (NVML) that nvidia-smi's tables lack.

These are MIG slices, and the compute capabilities if the driver is old. nvidia-smi itself uses this library.
The library opens no CUDA context, so it holds no card. A separate process calls it, because a crash or a hang
in it would take the agent down.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, List, Mapping, Optional, TypedDict

from ..record import strict_json
from ..system.deadline import run

NVML_TIMEOUT_S = 4.0
MAX_CHARS = 200
_ASK = r"""
import ctypes, json
library = ctypes.CDLL("libnvidia-ml.so.1")
def asked(name, *words):
    return getattr(library, name)(*words) == 0
def text(name, device):
    found = ctypes.create_string_buffer(96)
    return found.value.decode("utf-8", "replace") if asked(name, device, found, 96) else ""
def memory_mib(device):
    found = (ctypes.c_ulonglong * 3)()  # total, free, used, in bytes
    return found[0] / 2**20 if asked("nvmlDeviceGetMemoryInfo", device, found) else None
def capability(device):
    major, minor = ctypes.c_int(), ctypes.c_int()
    known = asked("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
    return "%d.%d" % (major.value, minor.value) if known else None
def slices(device):
    most = ctypes.c_uint()
    if not hasattr(library, "nvmlDeviceGetMaxMigDeviceCount"):
        return
    if not asked("nvmlDeviceGetMaxMigDeviceCount", device, ctypes.byref(most)):
        return
    for place in range(most.value):
        one = ctypes.c_void_p()
        if asked("nvmlDeviceGetMigDeviceHandleByIndex", device, place, ctypes.byref(one)):
            yield {"uuid": text("nvmlDeviceGetUUID", one), "name": text("nvmlDeviceGetName", one), "memory_mib": memory_mib(one)}
cards = []
if asked("nvmlInit_v2"):
    count = ctypes.c_uint()
    asked("nvmlDeviceGetCount_v2", ctypes.byref(count))
    for index in range(count.value):
        device = ctypes.c_void_p()
        if asked("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device)):
            cards.append({
                "uuid": text("nvmlDeviceGetUUID", device), "memory_mib": memory_mib(device),
                "capability": capability(device), "slices": list(slices(device)),
            })
print(json.dumps(cards))
"""


class CardSlice(TypedDict):
    """A slice of a card."""

    uuid: str
    name: str
    memory_mib: float


class DriverCard(TypedDict, total=False):
    """The driver library's data of a card."""

    capability: Optional[str]
    memory_mib: Optional[float]
    slices: List[CardSlice]


def cards_of_driver() -> dict[str, DriverCard]:
    """Return capability, memory in MiB and slices of each card, by UUID; empty if the library fails."""
    try:
        code, out, _ = run([sys.executable, "-S", "-c", _ASK], NVML_TIMEOUT_S)
        told = strict_json.decode(out.splitlines()[-1]) if code == 0 and out else []
        return {card["uuid"]: _checked(card) for card in told}
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        return {}


def _checked(card: Mapping[str, Any]) -> DriverCard:
    """Return a card's reported data, without slices that have no UUID.

    Raises LookupError, TypeError or ValueError.
    """
    slices: List[CardSlice] = [
        {"uuid": one["uuid"], "name": one["name"][:MAX_CHARS], "memory_mib": one["memory_mib"]}
        for one in card["slices"]
        if re.fullmatch(r"MIG-[^ ,]{1,80}", one["uuid"])
    ]
    return {"capability": card["capability"], "memory_mib": card["memory_mib"], "slices": slices}
