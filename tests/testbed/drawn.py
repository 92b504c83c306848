"""What stands in TensorBoard's own files, read without TensorBoard and without us."""

from __future__ import annotations

from pathlib import Path


def drawn(folder: Path) -> list[tuple[str, int, float]]:
    """Name, step and value of every point: a file is length, checksum, event, checksum, again and again."""
    from tensorboardX.proto import event_pb2  # it loads torch

    found = []
    for path in folder.glob("events.*"):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            assert data[8:12] == _sum(data[:8])
            assert data[12 + size : 16 + size] == _sum(data[12 : 12 + size])
            event = event_pb2.Event.FromString(data[12 : 12 + size])
            found += [(one.tag, event.step, one.simple_value) for one in event.summary.value]
            data = data[16 + size :]
    return found


def _sum(data: bytes) -> bytes:
    from tensorboardX.record_writer import masked_crc32c

    return int(masked_crc32c(data)).to_bytes(4, "little")
