"""A spooler, as at, tsp and Slurm are: it starts jobs for its clients, in their environment, and outlives them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.client import until

SPOOLER = """
import json, os, signal, socket, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    while True:
        client, _ = listener.accept()
        with client:
            words, variables, log = json.loads(client.makefile().readline())
            with open(log, "ab") as output:
                job = subprocess.Popen(words, env=variables, stdout=output, start_new_session=True)
            client.sendall(b"%d\\n" % job.pid)
"""
SUBMIT = """
import json, os, socket
with socket.socket(socket.AF_UNIX) as spooler:
    spooler.connect({socket!r})
    spooler.sendall(json.dumps([{words!r}, dict(os.environ), {log!r}]).encode() + b"\\n")
    job = int(spooler.makefile().readline())
"""


class Spooler:
    """A spooler that was started before a run, and from outside of it."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "spool"
        self._folder = folder
        self._jobs = 0
        self._process = subprocess.Popen([sys.executable, "-c", SPOOLER, str(self._socket)])
        until(self._socket.exists, "the spooler")

    @property
    def title(self) -> str:
        """Its name and pid, by the kernel."""
        name = Path(f"/proc/{self._process.pid}/comm").read_text().strip()
        return f"{name} (pid {self._process.pid})"

    def submit(self, words: list[str]) -> tuple[str, Path]:
        """Return the lines of a script that gives it a job, and the file that the job writes to; `job` is the pid then."""
        self._jobs += 1
        log = self._folder / f"job-{self._jobs}"
        return SUBMIT.format(socket=str(self._socket), words=words, log=str(log)), log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it and its jobs."""
        words = ["ps", "-o", "pid=", "--ppid", str(self._process.pid)]
        listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
        self._process.kill()
        self._process.wait()
        subprocess.run(["kill", "-KILL", *listed], check=False, stderr=subprocess.DEVNULL)
