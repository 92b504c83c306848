"""Toy: a runtime for the contract. A spooler of its own, a shell loop, starts each run's agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launcher.backends.toy.toy_host import ToyHost

from launcher.backends.base.runtime import ResumeInputs, Runtime
from launcher.errors import RunError
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.record import RuntimeRecord

SPOOL = Path.home() / ".launch-toy"
SPOOLER = 'echo $$ >"$1"; until "$2" -I "$3" contain "$4"; do sleep 0.2; done >>"$1.log" 2>&1; rm "$1"'
"""Starts the agent again until it exits with 0; the file `$1` holds the spooler's pid while it works."""
BEGINS_S = 60.0


class Toy(Runtime):
    """Runs that a spooler keeps. The client is on the same machine."""

    name = "toy"

    @classmethod
    def record_on(cls, host: Host, facts: Facts) -> RuntimeRecord | None:
        """Return a record for a toy; `None` for any other host."""
        del facts
        return RuntimeRecord(kind=cls.name) if isinstance(host, ToyHost) else None

    def start(self, run: str) -> str | None:
        """Hand the run over to the spooler; return when its agent has begun the first attempt."""
        self.client.preparation.hand_over(run)
        self._spool(run)
        return None

    def resume(self, run: str, needs: ResumeInputs) -> bool:
        """Have an interrupted run resumed by a new spooler."""
        self.client.runs.resume(run)
        self._spool(run)
        return True

    def remove(self, run: str) -> str | None:
        """Remove what the spooler wrote about a run."""
        for path in SPOOL.glob(f"{run}*"):
            path.unlink()

    def _spool(self, run: str) -> None:
        location, job = self.client.runs.location(run), SPOOL / run
        SPOOL.mkdir(exist_ok=True)
        words = ["sh", "-c", SPOOLER, "sh", str(job), sys.executable, location.agent, location.path]
        nothing = subprocess.DEVNULL
        subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
        if not self.client.runs.await_agent(run, BEGINS_S):
            raise RunError(f"{run} did not begin: {job.with_suffix('.log').read_text()}")


RUNTIME = Toy
