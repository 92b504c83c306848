"""A large data file and many files: each is sent once and stored once, and neither fills the memory of agent or client.

With LAUNCH_LARGE=1, as `make large` sets it, at full size: the table is tests/bench/LARGE.md.
"""

import json
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
from testbed.client import missing

pytestmark = [pytest.mark.testbed, pytest.mark.slow(reason="sends a large file and many small ones")]

MB = 1 << 20
IS_FULL = bool(os.environ.get("LAUNCH_LARGE"))
DATA_MB, FILES, CODE_MB = (3000, 30_000, 1200) if IS_FULL else (200, 1_000, 100)
MAX_MEMORY_MB = 150
AGENT_MB = 6
"""Of the agent and of the client, whatever the size of the files."""
NOISE = os.urandom(MB)


class Memory:
    """The most memory that each process had, by the kernel's own mark, of those whose words a pattern finds."""

    def __init__(self, **patterns):
        """Watch from now on."""
        self.most_mb = dict.fromkeys(patterns, 0)
        self._patterns = {name: re.compile(pattern) for name, pattern in patterns.items()}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    def _watch(self):
        while not self._is_over.wait(0.1):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    names = [name for name, pattern in self._patterns.items() if pattern.search(words)]
                    if names:
                        mark = re.search(r"VmHWM:\s+(\d+) kB", (folder / "status").read_text())
                        self.most_mb[names[0]] = max(
                            self.most_mb[names[0]], int(mark[1]) // 1024 if mark else 0
                        )
                except (OSError, ProcessLookupError):
                    continue  # it has ended


def write_noise(path, size_mb):
    """Write a file that no compression makes small."""
    with path.open("wb") as file:
        for number in range(size_mb):
            file.write(number.to_bytes(8, "big") + NOISE[8:])


@pytest.fixture
def host(client, lab):
    """A host with an empty root."""
    if os.geteuid() != 0:
        missing("the host's user must be another one")
    lab.remove_root()
    yield lab
    lab.remove_root()


def ship(client, *words):
    """Launch a command that only exits; return what the stage `ship` says, and how long it took."""
    lines = map(
        json.loads,
        client.ok("--json", "--yes", "--host", "A", *words, "--", "true", timeout=900).splitlines(),
    )
    stage = next(line for line in lines if line.get("kind") == "stage" and line["name"] == "ship")
    return stage["text"], float(stage["seconds"])


def used_mb(folder):
    """What a folder takes on the disk, by du, which counts a file with several names once, in MB."""
    done = subprocess.run(
        ["du", "-s", "-B1", folder], capture_output=True, text=True, check=False
    )  # a file may go meanwhile
    return int(done.stdout.split()[0]) // MB


WHAT = {
    "data": f"a data file of {DATA_MB:,} MB",
    "files": f"{FILES:,} files of 1 to 4 kB",
    "code": f"a code file of {CODE_MB:,} MB",
}


@pytest.mark.parametrize(
    "what", [pytest.param(one, marks=() if one == "files" else pytest.mark.long) for one in WHAT]
)
def test_it_is_sent_once_and_stored_once(client, host, what, record_property):
    """Three launches: the second and the third send nothing, and need no more room than copies of small files."""
    client.is_forked = False  # a client's memory is its own
    words = []
    if what == "data":
        write_noise(client.project / "big.bin", DATA_MB)
        (client.project / ".launchignore").write_text("big.bin\n")
        words = ["--set", "data.train=./big.bin"]
    elif what == "code":
        write_noise(client.project / "model.bin", CODE_MB)
    else:
        for number in range(FILES):
            path = client.project / f"d{number % 100}" / f"f{number}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"# {number}\n" * (100 + number % 300))
    size_mb = used_mb(client.project)
    with Memory(agent=f"agent.pyz serve {host.root}", client="launcher.cli import main.*--json") as memory:
        first, first_s = ship(client, *words)
        one_mb = used_mb(host.root)
        again = [ship(client, *words) for _ in range(2)]
    three_mb = used_mb(host.root)
    record_property("done", WHAT[what])
    record_property("first", f"{first}, {first_s:.1f} s")
    record_property("again", f"{again[-1][0]}, {again[-1][1]:.1f} s")
    record_property("agent", f"{memory.most_mb['agent']} MB")
    record_property("client", f"{memory.most_mb['client']} MB")
    record_property("disk", f"{one_mb:,} / {three_mb:,} MB")
    assert "none to send" not in first
    assert all("none to send" in text for text, _ in again)
    assert 0 < memory.most_mb["agent"] < MAX_MEMORY_MB
    assert 0 < memory.most_mb["client"] < 2 * MAX_MEMORY_MB
    if (
        what == "files"
    ):  # the store, three runs, and a spare copy; here each has its own, beside the agent's code
        assert three_mb <= 5 * size_mb + AGENT_MB
    else:
        assert three_mb < one_mb + 20
        assert one_mb < 1.1 * size_mb + 20
