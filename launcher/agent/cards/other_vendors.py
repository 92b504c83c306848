"""GPUs of this host by other makers than NVIDIA, as Linux lists them. No plan is made for them."""

from __future__ import annotations

import glob
import os

from ..record.files import read_text

_MAKERS = {"0x1002": "AMD", "0x8086": "Intel"}
_MIN_VRAM = 4 << 30
"""A processor's integrated GPU has less memory; Intel's has the fixed bus address below."""
_INTEL_PROCESSORS_OWN = "0000:00:02.0"


def list_gpus(at: str = "/") -> list[str]:
    """Return the GPUs, e.g. `AMD GPU 1002:74a1 (206 GB)`. `at` is the root of the file system."""
    found = {}
    for path in sorted(glob.glob(os.path.join(at, "sys/class/drm/card[0-9]*/device"))):
        vendor, device = _word(path, "vendor"), _word(path, "device")
        maker, address = _MAKERS.get(vendor), os.path.basename(os.path.realpath(path))
        memory = _word(path, "mem_info_vram_total")  # only from AMD's driver
        is_small = memory.isdigit() and int(memory) < _MIN_VRAM
        if maker is not None and not is_small and not (maker == "Intel" and address == _INTEL_PROCESSORS_OWN):
            size = " (%.0f GB)" % (int(memory) / 1e9) if memory.isdigit() else ""
            found[address] = "%s GPU %s:%s%s" % (maker, vendor[2:], device[2:6], size)
    return list(found.values())


def _word(folder: str, name: str) -> str:
    return (read_text(os.path.join(folder, name)) or "").strip()[:20]
