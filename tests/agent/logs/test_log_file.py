"""Logs that are read in pieces: the same lines as of the whole, and a bound on the memory."""

import io
import subprocess
import sys

import pytest
from testbed.client import LAUNCH

from launcher.agent.diagnosis import diagnose as diagnosing
from launcher.agent.diagnosis.good_exit import diagnose_log
from launcher.agent.logs import log_file
from launcher.agent.logs.log_file import LogFile

LOGS = [
    b"",
    b"\n",
    b"one\ntwo\n\nfour",
    b"\r1%\r2%\r3%\nend of it\n" * 9,
    b"x" * 500 + b"\n" + b"y" * 9,
    "löss ✓ 1.0\n".encode() * 40,
]
FAILS = """Traceback (most recent call last):
  File "/a/train.py", line 12, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB.
"""
MAX_BYTES = 150_000_000
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""A command's memory is counted from that of the process that starts it: pytest's own would be in it."""


@pytest.fixture
def _small_pieces(monkeypatch):
    monkeypatch.setattr(log_file, "PIECE", 64)
    monkeypatch.setattr(log_file, "_BACK", 16)
    monkeypatch.setattr(log_file, "_MAX_LINE_LENGTH", 1000)


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("log", LOGS)
def test_pieces_and_lines_are_those_of_the_whole_log(log, monkeypatch):
    """Forwards and backwards, with the offset of each line, and from the middle on."""
    file = LogFile(io.BytesIO(log))
    lines = log.split(b"\n")
    offsets = [sum(len(line) + 1 for line in lines[:place]) for place in range(len(lines))]
    if b"x" * 65 not in log:
        assert b"".join(file.pieces()) == log
        assert [*file.lines()] == lines
        assert [*file.lines_backwards()] == [*zip(offsets, lines, strict=True)][::-1]
    backwards = [*file.pieces_backwards()]
    assert b"".join(piece for _, piece in reversed(backwards)) == log
    assert [offset for offset, _ in backwards] == sorted({offset for offset, _ in backwards}, reverse=True)
    for count, offset in enumerate(offsets):
        rest = file.after(count)
        assert (rest.read(), rest.before) == (log[offset:], count)
        assert (file.at(offset).read(), file.at(offset).before) == (log[offset:], count)
        if line := lines[count]:
            first = next(number for number, other in enumerate(lines, 1) if line in other)
            assert file.number_of(line) == first


@pytest.mark.parametrize(
    "noise",
    [
        lambda n: f"step {n}/90000 loss {2 + n % 97 / 100:.3f} lr 2e-4\n",
        lambda n: f"\r{n % 100}%|{'#' * (n % 40)}| {n}/900" + "\n" * (n % 50 == 0),
        lambda n: f"{n * 2654435761 % 2**64:x} the quick fox {'abcdefgh'[n % 8] * (n % 71)}\n",
    ],
    ids=["steps", "bars", "text"],
)
def test_a_line_of_a_long_log_has_the_number_that_it_has_in_the_file(noise, monkeypatch):
    """Also where the middle of the log was not read: there are more different lines than may be kept."""
    monkeypatch.setattr(log_file, "PIECE", 1 << 16)
    monkeypatch.setattr(diagnosing, "_REPETITIVE_MOST", 1 << 18)
    monkeypatch.setattr(diagnosing, "_READ_MOST", 1 << 16)
    log = "".join(map(noise, range(60_000))) + "\n" + FAILS
    found = diagnose_log(log.encode())
    assert (found.name, found.number) == ("cuda-oom", log.rstrip("\n").count("\n") + 1)


@pytest.mark.long
def test_the_diagnosis_of_a_log_of_100_mb_needs_little_memory(client):
    """It is read in pieces. The kernel counts the memory of the process."""
    path = client.project / "crash.log"
    with path.open("w") as file:
        size = 0
        while size < 100_000_000:
            size += file.write(
                "".join(f"{size + n:x} the quick fox {n * 40503 % 99991:x}\n" for n in range(20_000))
            )
        file.write(FAILS)
    words = [sys.executable, "-c", MEASURE, *LAUNCH, "diagnose", str(path)]
    done = subprocess.run(words, cwd=client.project, env=client.env, capture_output=True, check=True)
    first, *_, memory = done.stdout.splitlines()
    assert first.startswith(b"cuda-oom   line ")
    assert int(memory) * (1 if sys.platform == "darwin" else 1024) <= MAX_BYTES
