"""The card by a witness that is not ours: nvidia-smi."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator


def smi(field: str) -> str:
    """Return a field of the first card."""
    words = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", "0"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def card_bytes() -> int:
    """Return the card's memory."""
    return int(smi("memory.total")) * 2**20


def used_bytes() -> int:
    """Return how much of the card's memory is in use."""
    return int(smi("memory.used")) * 2**20


def capability() -> tuple[int, int]:
    """Return the card's compute capability."""
    major, _, minor = smi("compute_cap").partition(".")
    return int(major), int(minor)


def holders() -> set[int]:
    """Return the pids that hold a card. In a container it may be none of ours."""
    words = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader,nounits"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return {int(word) for word in said.split() if word.isdigit()}


@contextlib.contextmanager
def watched(peaks: list[float]) -> Iterator[None]:
    """Look five times a second at the card's memory in use; at the end, add the most to `peaks`, in GB."""
    query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with subprocess.Popen(
        ["nvidia-smi", *query, "-i", "0", "-lms", "200"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines, seen = process.stdout, [0.0]
        reader = threading.Thread(
            target=lambda: seen.extend(float(line) for line in lines if line.strip().isdigit())
        )
        reader.start()
        try:
            yield
        finally:
            process.kill()
            reader.join()
            peaks.append(max(seen) * 2**20 / 1e9)
