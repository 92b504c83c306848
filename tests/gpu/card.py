"""The card by a witness that is not ours: nvidia-smi. Only the standard library is imported here."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import NamedTuple

from gpu.environment import UnfitError

MIB = 2**20


class Card(NamedTuple):
    """The card, as nvidia-smi reports it; `capability` is that of its kernels, e.g. (9, 0)."""

    name: str
    driver: str
    capability: tuple[int, int]
    memory_mib: int
    compute_mode: str

    @property
    def has_bf16(self) -> bool:
        """Whether it computes bf16; older cards emulate it."""
        return self.capability >= (8, 0)

    @property
    def is_exclusive(self) -> bool:
        """Whether it takes one process at a time."""
        return "exclusive" in self.compute_mode.lower()


def find_card() -> Card:
    """Return the first card. Raises UnfitError without one."""
    instead = "REHEARSE=1 make gpu tries the same parts on the CPU"
    if shutil.which("nvidia-smi") is None:
        raise UnfitError(f"there is no nvidia-smi here, so no NVIDIA card: {instead}")
    query = "--query-gpu=name,driver_version,compute_cap,memory.total,compute_mode"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnfitError(f"nvidia-smi does not answer ({type(error).__name__}): {instead}") from error
    card = read_card(done.stdout)
    if card is None:
        said = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[0]
        raise UnfitError(f"nvidia-smi reports no card, but says: {said}. {instead}")
    return card


def read_card(answer: str) -> Card | None:
    """Read the first line that describes a card; None if there is none."""
    for line in answer.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[3].isdigit():
            major, _, minor = cells[2].partition(".")
            return Card(cells[0], cells[1], (int(major), int(minor)), int(cells[3]), cells[4])
    return None


def used_bytes() -> int:
    """Return how much of the first card's memory is in use."""
    return _mib("memory.used") * MIB


def free_bytes() -> int:
    """Return how much of the first card's memory is free; what the driver keeps is neither free nor in use."""
    return _mib("memory.free") * MIB


def _mib(field: str) -> int:
    words = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def holders() -> set[int]:
    """Return the pids that hold a card. In a container it may be none of ours."""
    words = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader,nounits"]
    answer = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return {int(word) for word in answer.split() if word.isdigit()}


@contextlib.contextmanager
def watched(peaks: list[float]) -> Iterator[None]:
    """Look five times a second at the card's memory in use; at the end, add the most to `peaks`, in GB, if any was reported."""
    query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with subprocess.Popen(
        ["nvidia-smi", *query, "-i", "0", "-lms", "200"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines, seen = process.stdout, list[float]()
        reader = threading.Thread(
            target=lambda: seen.extend(float(line) for line in lines if line.strip().isdigit())
        )
        reader.start()
        try:
            yield
        finally:
            process.kill()
            reader.join()
            if seen:
                peaks.append(max(seen) * MIB / 1e9)
