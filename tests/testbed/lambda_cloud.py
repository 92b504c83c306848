"""An account of Lambda Cloud's stand-in with machines behind its instances, and a project that trains there.

The client waits by a simulated clock, which it shares with the stand-in: an instance boots at once, and an hour costs what
an hour costs. What runs on a machine runs by this machine's own clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.client import REPOSITORY, Client, until
from testbed.lambda_machines import Instances
from testbed.lambda_service import LambdaService
from testbed.sim_clock import SimClock

from launcher.rental.ledger import RentalLedger
from launcher.rental.renting import Rental

HERE = Path(__file__).resolve().parent
KEY = "secret_alice_9f8e7d6c5b4a39281706"
PASSES_S = 15.0
"""So much time passes by the simulated clock between two looks: a keeper that waits for its next try moves no clock."""


class LambdaCloud:
    """A client, the stand-in, and its machines."""

    def __init__(self, client: Client, service: LambdaService, instances: Instances, clock: SimClock) -> None:
        """Write the project's launch.toml, with a host `rented`."""
        self.client, self.service, self.instances, self.clock = client, service, instances, clock
        self._tables: list[str] = []
        self.table()

    def table(self, **more: object) -> None:
        """Write the table of the host `rented`, with more keys; those of a dict are a table in it."""
        keys = {"kind": "lambda-cloud", "api": self.service.base, "max_hours": 4, **more}
        lines, given = ["[hosts.rented]"], [pair for pair in keys.items() if pair[1] is not None]
        for key, value in sorted(given, key=lambda pair: isinstance(pair[1], dict)):
            if isinstance(value, dict):
                lines.append(f"[hosts.rented.{key}]")
                lines += [f"{name} = {json.dumps(one)}" for name, one in value.items()]
            else:
                lines.append(f"{key} = {json.dumps(value)}")
        self._tables[:1] = ["\n".join([*lines, ""])]
        self._write()

    def name_machine(self, name: str, **more: object) -> None:
        """Write a table of a plain host for the newest machine, for verbs that name a host."""
        self._tables[1:] = [self.instances.newest.table(name, **more)]
        self._write()

    def _write(self) -> None:
        (self.client.project / "launch.toml").write_text("".join(self._tables))

    @property
    def ledger(self) -> RentalLedger:
        """The client's ledger."""
        return RentalLedger(self.client.home / ".local" / "share" / "launch" / "rentals")

    def rentals(self) -> tuple[Rental, ...]:
        """Return what is in it."""
        return self.ledger.rentals()

    def started(self, *words: str) -> subprocess.Popen[str]:
        """Launch a run on a rented machine, and return the client that follows it, once its script has printed a line."""
        process = self.client.start("--host", "rented", "--profile", "a100_40gb", *words)
        until(lambda: any(self.client.runs.glob("2*/*/log.txt")), "the run's first line", timeout=300)
        return process

    def go(self) -> None:
        """Let the scripts on the newest machine, which wait for a file, end."""
        self.instances.newest.enter("touch", "/home/ubuntu/go")

    def follows_on(self) -> None:
        """Return once who follows the newest run has looked at the clock: two lines came here, one after the other.

        Its script prints the names of the files `first` and `second` when they are there.
        """
        for word in ("first", "second"):
            self.instances.newest.enter("touch", f"/home/ubuntu/{word}")
            until(lambda word=word: word in self._log(), f"a line that says {word}", timeout=300)

    def _log(self) -> str:
        """Return what has come here of the runs' logs."""
        return "".join(path.read_text() for path in self.client.runs.glob("2*/*/log.txt"))

    def keepers(self) -> list[int]:
        """Return the processes on this machine that hold a lock of the client's rentals."""
        folder = str(self.client.home / ".local" / "share" / "launch" / "rentals")
        found = set()
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            if pid != os.getpid() and any(link.startswith(folder) for link in _open_files(pid)):
                found.add(pid)
        return sorted(found)

    def end_keepers(self) -> None:
        """End them all; return once they have ended."""
        for pid in self.keepers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.keepers(), "the keepers' end")

    def until_gone(self) -> None:
        """Wait until no instance lives that a client of ours launched, by the stand-in's own account."""
        self.later(lambda: not self.ours(), "the end of the rent")

    def until_left(self) -> None:
        """Wait until no process looks after a rental."""
        self.later(lambda: not self.keepers(), "the end of what looks after rentals")

    def later(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; time passes meanwhile, by the simulated clock too."""
        until(lambda: condition() or self.clock.sleep(PASSES_S), what, timeout=180, every=0.25)

    def ours(self) -> list[str]:
        """Return the ids of instances that live and carry a nonce."""
        return [one.id for one in self.service.alive() if one.tag("launch:nonce")]


def _open_files(pid: int) -> list[str]:
    """Return what a process has open; nothing of one that has ended."""
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile, and others are open
                found.append(os.readlink(link))
    return found


@contextmanager
def lambda_cloud_for(
    client: Client, folder: Path, make: Callable[[LambdaService], Instances] = Instances
) -> Iterator[LambdaCloud]:
    """Give an account with machines to a client. Raises MissingPartError."""
    clock = SimClock(folder / "clock")
    with LambdaService(clock) as service, make(service) as instances:
        service.account(key=KEY)
        client.variables |= {
            "LAMBDA_API_KEY": KEY,
            "SIM_CLOCK": str(folder / "clock"),
            "PYTHONPATH": f"{HERE / 'sim_python'}:{REPOSITORY / 'tests'}:{REPOSITORY}",  # a copy's own, see mutants/
        }
        made = LambdaCloud(client, service, instances, clock)
        try:
            yield made
        finally:
            made.end_keepers()
