"""A stand-in for `nvidia-smi`: answers the queries of the probe and of a run's agent from `state.json` beside it.

It is copied there as a program of that name, with `context.py`. Who holds a card is asked of the kernel, at this
moment. With `--loop` it reports until it is ended, and appends what it has printed to `loop.jsonl`. Standard library
only.

The real one: https://docs.nvidia.com/deploy/nvidia-smi/ ("-i, --id=ID", "-l SEC, --loop=SEC", "-lms ms, --loop-ms=ms"). As a C program it dies
of SIGPIPE. Between two reports of a loop it may print an ECC or XID error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
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
    *("index", "uuid", "name", "compute_cap", "memory.total", "memory.used", "memory.free"),
    *(
        "driver_version",
        "pci.bus_id",
        "compute_mode",
        "mig.mode.current",
        "ecc.errors.uncorrected.volatile.total",
    ),
    *("utilization.gpu", "power.draw", "temperature.gpu"),
]
ALWAYS_TOLD = ("index", "uuid", "name", "driver_version", "gpu_uuid", "pid")


def main(words: list[str]) -> int:
    """Answer one query, once or in a loop; return the exit code that the real one has."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    query = parser.add_mutually_exclusive_group(required=True)
    query.add_argument("--query-gpu")
    query.add_argument("--query-compute-apps")
    parser.add_argument("--format", choices=["csv,noheader,nounits"], required=True)
    parser.add_argument("-i", "--id")
    parser.add_argument("-l", "--loop", type=int)
    parser.add_argument("-lms", "--loop-ms", type=int)
    asked = parser.parse_args(words)
    what = "gpu" if asked.query_gpu else "compute-apps"
    fields = (asked.query_gpu or asked.query_compute_apps).split(",")
    while True:
        state = json.loads((context.HERE / "state.json").read_text())
        code, lines = answer(state, what, fields, asked.id)
        if asked.loop is not None or asked.loop_ms is not None:
            entry = {"pid": os.getpid(), "time": time.time(), "lines": lines}
            with (context.HERE / "loop.jsonl").open("a") as ledger:
                ledger.write(json.dumps(entry) + "\n")
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
        if (asked.loop is None and asked.loop_ms is None) or code not in (0, 15):
            return code
        time.sleep(state["loop_s"] or asked.loop or asked.loop_ms / 1000)


def answer(state: dict, what: str, fields: list[str], named: str | None) -> tuple[int, list[str]]:
    """Return the exit code and the lines of one report."""
    fault = state["faults"].get(what)
    if fault == "hang":
        time.sleep(1e6)
    if fault in FAULTS:
        code, text = FAULTS[fault]
        return code, [text]
    rows, known = {"gpu": cards, "compute-apps": apps}[what](state)
    if named is not None:
        rows = [row for row in rows if {row["uuid"], str(row["index"])} & set(named.split(","))]
    for field in fields:
        if field not in known or field in state["unknown_fields"]:
            return 2, [f'Field "{field}" is not a valid field to query.\n']
    if not state["cards"] or (named is not None and not rows):
        return 6, ["No devices were found"]
    code, lines = 0, list(state["between"])
    for row in rows:
        if row.get("lost"):
            lines.append(LOST % row["pci.bus_id"][4:])
            code = 15
            continue
        told = {**row, **{key: "[N/A]" for key in row if fault == "na" and key not in ALWAYS_TOLD}}
        lines.append(", ".join(str(told[field]) for field in fields))
    return code, lines


def cards(state: dict) -> tuple[list[dict], list[str]]:
    """Return the cards as rows, and the fields that are known."""
    rows = []
    for card in state["cards"]:
        used = card["memory.used"]
        if isinstance(used, int):
            used += sum(memory for _, memory in held(card).values())
        total = card["memory.total"]
        free = total - used if isinstance(total, int) and isinstance(used, int) else "[N/A]"
        rows.append({**card, "memory.used": used, "memory.free": free})
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
