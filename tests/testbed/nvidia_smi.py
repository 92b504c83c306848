"""A stand-in for `nvidia-smi`: answers the queries that the probe makes from `state.json` beside it.

It is copied there as a program of that name, with `context.py`. Who holds a card is asked of the kernel, at this
moment. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import context

LOST = "Unable to determine the device handle for GPU%s: GPU is lost.  Reboot the system to recover this GPU"
FAULTS = {
    "nvml": (18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.65"),
    "lost": (15, LOST % " 0000:02:00.0"),
    "unknown": (255, "Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error"),
}
FIELDS = [
    *("index", "uuid", "name", "compute_cap", "memory.total", "memory.used", "driver_version", "pci.bus_id"),
    *("compute_mode", "mig.mode.current", "ecc.errors.uncorrected.volatile.total"),
]
ALWAYS_TOLD = ("index", "uuid", "name", "driver_version", "gpu_uuid", "pid")


def main(words: list[str]) -> int:
    """Answer one query; return the exit code that the real one has."""
    state = json.loads((context.HERE / "state.json").read_text())
    options = dict(word.split("=", 1) for word in words)
    assert options.pop("--format") == "csv,noheader,nounits"
    ((query, asked),) = options.items()
    what = query.removeprefix("--query-")
    fault = state["faults"].get(what)
    if fault == "hang":
        time.sleep(1e6)
    if fault in FAULTS:
        code, text = FAULTS[fault]
        print(text)
        return code
    rows, known = {"gpu": cards, "compute-apps": apps}[what](state)
    for field in asked.split(","):
        if field not in known or field in state["unknown_fields"]:
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    if not state["cards"]:
        print("No devices were found")
        return 6
    code = 0
    for row in rows:
        if row.get("lost"):
            print(LOST % row["pci.bus_id"][4:])
            code = 15
            continue
        told = {**row, **{key: "[N/A]" for key in row if fault == "na" and key not in ALWAYS_TOLD}}
        print(", ".join(str(told[field]) for field in asked.split(",")))
    return code


def cards(state: dict) -> tuple[list[dict], list[str]]:
    """Return the cards as rows, and the fields that are known."""
    rows = []
    for card in state["cards"]:
        used = sum(memory for _, memory in held(card).values())
        own = card["memory.used"]
        rows.append({**card, "memory.used": own + used if isinstance(own, int) else own})
    return rows, FIELDS


def apps(state: dict) -> tuple[list[dict], list[str]]:
    """Return who holds the cards as rows, and the fields that are known."""
    rows = [
        {"gpu_uuid": card["uuid"], "pid": pid, "used_memory": memory, "process_name": name_of(pid)}
        for card in state["cards"]
        if not card.get("lost")
        for pid, memory in held(card).values()
        if pid > 0
    ]
    return rows, ["gpu_uuid", "pid", "used_memory", "process_name"]


def held(card: dict) -> dict[int, tuple[int, int]]:
    """Return the contexts on a card."""
    file = os.open(context.HERE / card["uuid"], os.O_RDONLY)
    try:
        return context.contexts(file)
    finally:
        os.close(file)


def name_of(pid: int) -> str:
    """Return a process's program, as its own command line has it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "[Not Found]"
    return words[0].decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
