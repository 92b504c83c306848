"""One part of `make gpu`, in a process of its own: `part.py NAME FOLDER [rehearse]`. Its rows go to FOLDER/rows.jsonl."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.card import Card
from gpu.parts import PARTS
from gpu.station import Station


def machine(card: Card | None) -> dict[str, Any]:
    """Describe this machine."""
    versions = {
        name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft", "accelerate")
    }
    return {
        **(_about(card) if card else {}),
        "CPUs": os.cpu_count(),
        "Python": platform.python_version(),
        **versions,
    }


def _about(card: Card) -> dict[str, str]:
    return {
        "card": card.name,
        "memory": f"{card.memory_mib} MiB",
        "capability": ".".join(map(str, card.capability)),
        "compute mode": card.compute_mode,
        "driver": card.driver,
    }


def main() -> None:
    """Measure, and write each row as it is found."""
    name, folder, is_rehearsed = sys.argv[1], Path(sys.argv[2]), sys.argv[3:] == ["rehearse"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("it was ended"))
    module, _, function = PARTS[name].function.partition(".")
    with (folder / "rows.jsonl").open("w") as file, Station(folder, is_rehearsed=is_rehearsed) as station:

        def write(line: dict[str, Any]) -> None:
            print(json.dumps(line), file=file, flush=True)
            print(json.dumps(line), flush=True)

        write({"machine": machine(station.card)})
        for row in getattr(importlib.import_module(f"gpu.{module}"), function)(station):
            write({"row": row})


if __name__ == "__main__":
    main()
