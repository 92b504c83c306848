"""Answers of torch.cuda and torch.accelerator about an imitated card.

A card without bf16 answers that it supports bf16, as torch does for the real card: torch counts emulation.
"""

from __future__ import annotations

import sys
import types
from collections import defaultdict
from typing import Any, Callable, Dict

from . import card_streams
from .planned_card import Card

_NOTHING = [
    "init",
    "_lazy_init",
    "synchronize",
    "empty_cache",
    "ipc_collect",
    "set_device",
    "set_stream",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
    "set_per_process_memory_fraction",
    "set_sync_debug_mode",
    "_sleep",
    "check_error",
]
_ZERO = [
    "current_device",
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
    "memory_usage",
    "utilization",
    "temperature",
    "power_draw",
    "clock_rate",
    "initial_seed",
    "get_sync_debug_mode",
]
_OF_ACCELERATOR = [
    "set_device_index",
    "set_device_idx",
    "synchronize",
    "empty_cache",
    "set_stream",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
]


def install(torch: Any, card: Card) -> None:
    """Make torch.cuda and torch.accelerator answer as they would with this card."""
    answers = {**_facts(torch, card), **_memory(card), **_random(torch, card)}
    answers.update({name: _returns(None) for name in _NOTHING})
    answers.update({name: _returns(0) for name in _ZERO})
    answers.update(
        device=_Device, device_of=_Device, stream=card_streams.entered, StreamContext=card_streams.entered
    )
    answers.update(Stream=card_streams.Stream, ExternalStream=card_streams.Stream, Event=card_streams.Event)
    answers.update({name: _returns(card_streams.Stream()) for name in ("current_stream", "default_stream")})
    cuda = torch.cuda
    for module in (cuda, cuda.memory, cuda.random, cuda.streams):
        for name, answer in answers.items():
            if hasattr(module, name):
                setattr(module, name, answer)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, name, _returns(0))
    cuda.nvtx.range = card_streams.entered
    torch.version.cuda = "12.6"  # scripts and Trainer compare it, and None would fail
    if hasattr(torch, "accelerator"):
        _install_accelerator(torch, answers)


class _Device:
    """A context that makes a card the current one."""

    def __init__(self, device: Any = None) -> None:
        self.idx = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass


def _facts(torch: Any, card: Card) -> Dict[str, Any]:
    major, minor = card.capability

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or major >= 8

    properties = types.SimpleNamespace(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=card.memory_bytes,
        multi_processor_count=0,
        is_integrated=False,
        is_multi_gpu_board=False,
        warp_size=32,
    )
    architecture = f"sm_{major}{minor}"
    return {
        "is_available": _is_available,
        "device_count": _returns(card.cards),
        "get_device_name": _returns(card.name),
        "get_device_capability": _returns(card.capability),
        "get_device_properties": _returns(properties),
        "is_bf16_supported": is_bf16_supported,
        "is_tf32_supported": _returns(major >= 8),
        "is_current_stream_capturing": _returns(False),
        "can_device_access_peer": _returns(card.cards > 1),
        "get_arch_list": _returns([architecture]),
        "get_gencode_flags": _returns(f"-gencode compute=compute_{major}{minor},code={architecture}"),
        "list_gpu_processes": _returns("no processes are running"),
    }


def _is_available() -> bool:
    """Return True, but False to bitsandbytes, so that it loads its CPU libraries and not those for CUDA."""
    asking = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001  # the only way to a caller
    return asking.partition(".")[0] != "bitsandbytes"


def _memory(card: Card) -> Dict[str, Any]:
    """Return the answers about memory: all of the card's memory is free."""
    return {
        "mem_get_info": _returns((card.memory_bytes, card.memory_bytes)),
        "memory_stats": lambda *_args, **_kwargs: defaultdict(int),
        "memory_summary": _returns("the memory of a card is not rehearsed"),
        "memory_snapshot": _returns([]),
    }


def _random(torch: Any, card: Card) -> Dict[str, Any]:
    """Return the answers about random numbers: the CPU's generator draws them, so the card's generator has no state."""

    def state(*_args: Any, **_kwargs: Any) -> Any:
        return torch.zeros(16, dtype=torch.uint8)

    return {"get_rng_state": state, "get_rng_state_all": lambda: [state() for _ in range(card.cards)]}


def _install_accelerator(torch: Any, answers: Dict[str, Any]) -> None:
    accelerator = torch.accelerator
    own = {name: _returns(None) for name in _OF_ACCELERATOR}
    own["current_accelerator"] = _returns(torch.device("cuda"))
    own["current_device_index"] = own["current_device_idx"] = _returns(0)
    own["get_memory_info"] = answers["mem_get_info"]
    own.update({name: answers[name] for name in ("is_available", "device_count", "memory_stats")})
    own.update({name: answers[name] for name in _ZERO if name.startswith(("memory_", "max_memory_"))})
    own["current_stream"] = answers["current_stream"]
    for name, answer in own.items():
        if hasattr(accelerator, name):
            setattr(accelerator, name, answer)


def _returns(value: Any) -> Callable[..., Any]:
    def answer(*_args: Any, **_kwargs: Any) -> Any:
        return value

    return answer
