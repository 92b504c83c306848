"""A stand-in for NVIDIA's `nvidia-container-runtime-hook`: puts simulated cards into a container, before its program begins.

It is copied beside `state.json` as a program of that name. An engine that finds it on its PATH knows the driver `nvidia`, and has it called in
the container's namespaces, with the OCI state of the container on standard input. As the real one mounts devices and libraries, it
mounts the files of those cards that the container asked for, and what opens them, at the paths that they have outside. And it mounts
the boot id: a container on a host of its own sees that host's, where one in a machine of ours would see the kernel's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MOUNT = '[ -e "$2" ] || { mkdir -p "${2%/*}"; touch "$2"; }; exec mount --bind "$1" "$2"'


def main() -> None:
    """Mount what the container asked for. Raises KeyError for a card that is not there, as the real one fails."""
    state = json.load(sys.stdin)
    config = json.loads((Path(state["bundle"]) / "config.json").read_text())
    variables = dict(one.split("=", 1) for one in config["process"]["env"])
    cards = {card["uuid"] for card in json.loads((HERE / "state.json").read_text())["cards"]}
    asked = set(variables["NVIDIA_VISIBLE_DEVICES"].split(","))
    if asked - cards:
        raise KeyError(f"no such cards: {asked - cards}")
    for path in (BOOT_ID, HERE / "state.json", HERE / "context.py", *(HERE / uuid for uuid in sorted(asked))):
        words = ["sh", "-e", "-c", MOUNT, "mount", str(path), f"{config['root']['path']}{path}"]
        subprocess.run(["nsenter", "-t", str(state["pid"]), "--mount", "--", *words], check=True)


if __name__ == "__main__":
    main()
