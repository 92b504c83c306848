"""A stand-in for CUDA on simulated cards: `open_context` holds a card as the first tensor of a training would.

It is copied beside `state.json` and imported there by a training script; standard library only. A context is a record lock of the
kernel on the card's file. So it belongs to one process and to none that it forks, ends with that process whatever
killed it, and whoever asks is told its pid as their own pid namespace has it.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
SLOT = 16
SLOTS = 64
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid
_BUSY = """\
CUDA error: CUDA-capable device(s) is/are busy or unavailable
Search for `cudaErrorDevicesUnavailable' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
_opened: dict[str, tuple[int, int]] = {}


class AcceleratorError(RuntimeError):
    """CUDA's error as torch raises it; a traceback calls it `torch.AcceleratorError`."""


AcceleratorError.__module__ = "torch"


def open_context(device: int = 0, memory_mib: int = 500) -> str:
    """Hold one of the visible cards until this process ends; return its UUID.

    Raises AcceleratorError where the card's compute mode admits no more, RuntimeError where no card is seen.
    """
    seen = visible()
    if device >= len(seen):
        raise RuntimeError("No CUDA GPUs are available")
    card = seen[device]
    uuid = card["uuid"]
    if uuid in _opened:
        if _opened[uuid][0] != os.getpid():
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. "
                "To use CUDA with multiprocessing, you must use the 'spawn' start method"
            )
        return uuid
    file = os.open(HERE / uuid, os.O_RDWR)
    fcntl.lockf(file, fcntl.LOCK_EX, SLOT, 0)  # the door: one at a time
    held = contexts(file)
    mode = card["compute_mode"].lower()
    if mode == "prohibited" or (mode.startswith("e") and held):
        os.close(file)
        raise AcceleratorError(_BUSY)
    slot = next(slot for slot in range(1, SLOTS) if slot not in held)
    os.pwrite(file, str(memory_mib).encode().ljust(SLOT), slot * SLOT)
    fcntl.lockf(file, fcntl.LOCK_EX, SLOT, slot * SLOT)
    fcntl.lockf(file, fcntl.LOCK_UN, SLOT, 0)
    _opened[uuid] = (os.getpid(), file)
    return uuid


def visible() -> list[dict]:
    """Return the cards that CUDA_VISIBLE_DEVICES shows to this process, in its order; what it does not know ends the list."""
    cards = json.loads((HERE / "state.json").read_text())["cards"]
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    if words is None:
        return cards
    seen = []
    for word in words.split(","):
        named = [card for card in cards if _names(word.strip(), card)]
        if len(named) != 1:
            break
        seen += named
    return seen


def _names(word: str, card: dict) -> bool:
    return word == str(card["index"]) or (word.startswith("GPU-") and card["uuid"].startswith(word))


def contexts(file: int) -> dict[int, tuple[int, int]]:
    """Return the contexts on a card other than this process's own: (pid, memory in MiB) by slot.

    The pid is 0 where the process is in a pid namespace that the caller does not see.
    """
    found = {}
    for slot in range(1, SLOTS):
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot * SLOT, SLOT, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
        if kind != fcntl.F_UNLCK:
            found[slot] = (pid, int(os.pread(file, SLOT, slot * SLOT) or 0))
    return found
