"""An account of Kaggle's stand-in with a project that trains there, and what its witnesses say of it."""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed import trainer
from testbed.client import Client, until
from testbed.kaggle_service import KaggleService
from testbed.kaggle_session import Session
from testbed.kaggle_state import Habits

from launcher.backends.kaggle.kaggle import Account
from launcher.backends.kaggle.kaggle_host import KaggleSettings

HOST = "k"
EVERY = 3
JOB = """
name = "counts"
command = ["python", "train.py", "{ledger}", "{step_s}"]
steps = {steps}
save_every_steps = {every}
stop_grace_s = 5
[batch]
global = 4
"""
PAUSES = """
import signal
def train(step):
    gate, asked = sys.argv[1] + ".gate-%d" % step, []
    if os.path.exists(gate):
        saving = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *values: (asked.append(1), saving(*values)))
        note(waits=step)
        while os.path.exists(gate) and not asked:
            time.sleep(0.02)
        signal.signal(signal.SIGTERM, saving)
"""
"""Steps after the first at which the training waits, until the test lets it go on, or it is asked to save."""


IMPATIENT = """
from launcher.backends.spool import segments
from launcher.runs.follow import following
from launcher.backends.kaggle import kaggle_runtime
following.BACK_OFF_S = (0.2, 0.4)
kaggle_runtime.FIRST_S, kaggle_runtime.LOOK_S = 2.0, 0.5
segments.APPEAR_S, segments.BACK_OFF_S = {appear_s}, (0.5,)
segments.SETTLE_S, segments.SETTLE_EVERY_S = 1.0, 0.2
segments.OVERDUE_S = 0.0
from launcher.cli import main
main()
"""
"""A launcher that waits less than a service may need."""


class KaggleAccount:
    """The stand-in with alice's account, and her machine: `client`, with a project whose host `k` is that account."""

    def __init__(self, client: Client, service: KaggleService, folder: Path) -> None:
        """Write the project. Nothing is launched."""
        self.client = client
        self.service = service
        self.ledger = folder / "samples"
        self.place = Account(KaggleSettings(api=service.base), "alice").place
        service.account()
        self.log_in(client)
        self.host()
        self.job()

    def log_in(self, client: Client) -> None:
        """Give a client alice's credentials."""
        client.variables |= {"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "key-of-alice"}

    def host(self, client: Client | None = None, **keys: Any) -> None:
        """Write the host's table, with these keys beside the usual ones; one that is None is left out."""
        table = {"kind": "kaggle", "api": self.service.base, "accelerator": "None", **keys}
        lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
        ((client or self.client).project / "launch.toml").write_text(
            "\n".join([f"[hosts.{HOST}]", *lines, ""])
        )

    def job(
        self,
        steps: int = 12,
        *,
        every: int = EVERY,
        step_s: float = 0.0,
        hook: str = PAUSES,
        client: Client | None = None,
    ) -> None:
        """Write the job and its training."""
        chosen = client or self.client
        chosen.script(trainer.source(hook))
        words = JOB.format(ledger=self.ledger, step_s=step_s, steps=steps, every=every)
        (chosen.project / "counts.toml").write_text(words)

    def pause_at(self, *steps: int) -> None:
        """Let the training wait at these steps."""
        for step in steps:
            Path(f"{self.ledger}.gate-{step}").touch()

    def go_on(self) -> None:
        """Let it go on."""
        for gate in self.ledger.parent.glob(f"{self.ledger.name}.gate-*"):
            gate.unlink()

    def hurry(self, client: Client | None = None, appear_s: float = 1.0) -> None:
        """Let a client's commands wait less than a service may need: for a push to appear, so many seconds."""
        chosen = client or self.client
        chosen.program = [sys.executable, "-c", IMPATIENT.format(appear_s=appear_s)]

    def until(self, condition: Callable[[], object], timeout: float = 60) -> None:
        """Wait until a condition holds."""
        until(condition, "what the test needs", timeout)

    def copy(self, name: str) -> Client:
        """Return another machine of alice's, with an empty home and an empty project."""
        other = Client(self.client.home.parent / name)
        self.log_in(other)
        self.host(other)
        return other

    # the client

    def words(self, *more: str) -> list[str]:
        """The words of `launch` for the job."""
        return ["--host", HOST, "--job", "counts.toml", *more]

    def detached(self, *more: str) -> str:
        """Launch detached; return the run."""
        return self.client.detached(*self.words(*more))

    def spool(self, client: Client | None = None) -> Path:
        """The spool of a client."""
        return (client or self.client).home / ".local" / "share" / "launch" / "spool" / self.place

    def run_dir(self, run: str, client: Client | None = None) -> Path:
        """A run's folder in a spool."""
        return self.spool(client) / "runs" / run

    def runs(self) -> list[str]:
        """The client's runs."""
        return sorted(path.name for path in self.client.runs.glob("[0-9]*"))

    def read(self, run: str, path: str) -> dict[str, Any]:
        """A file of a run's folder in the spool."""
        found: dict[str, Any] = json.loads((self.run_dir(run) / path).read_text())
        return found

    def segment(self, run: str, client: Client | None = None) -> dict[str, Any]:
        """What is on record of a run's latest segment."""
        record: dict[str, Any] = json.loads(
            (self.run_dir(run, client) / "control" / "service.json").read_text()
        )
        return record

    def row(self, run: str, client: Client | None = None) -> dict[str, Any]:
        """A run's row of `launch ps --host k`."""
        rows = json.loads((client or self.client).ok("ps", "--json", "--host", HOST))["runs"]
        found: dict[str, Any] = next(row for row in rows if row["run"] == run)
        return found

    # what others do

    def delete(self, ref: str) -> None:
        """Delete a kernel, as a person does on the web."""
        kernel = self.service.state.kernels.pop(ref)
        for version in kernel.versions:
            version.session.cancel()

    def push_by_hand(self, slug: str) -> None:
        """Push a script that is none of launcher's, as the account's owner does."""
        body = {
            "slug": f"alice/{slug}",
            "newTitle": slug,
            "text": "",
            "language": "python",
            "kernelType": "script",
        }
        with self.service.state.lock:
            self.service.state.save_kernel(self.service.state.accounts[0], body)

    def make_dataset_by_hand(self, slug: str) -> None:
        """Make a dataset that is none of this spool's."""
        with self.service.state.lock:
            self.service.state.create_dataset(self.service.state.accounts[0], {"slug": slug, "title": slug})

    def fail_session(self, run: str, segment: int) -> None:
        """Let a session end in an error, as if its machine had died."""
        self.session(run, segment).break_down()

    # the witnesses

    def kernels(self, run: str = "") -> list[str]:
        """The kernels that the account has, or those of a run."""
        return [name for name in self.service.state.kernels if run in name]

    def pushes(self) -> list[str]:
        """The pushes that the service has accepted, by its ledger, as `OWNER/SLUG/VERSION`."""
        return [line["push"] for line in self.service.calls("SaveKernel") if line.get("push")]

    def assert_pushed_once(self, run: str, segments: int) -> None:
        """Fail unless each segment of a run was pushed, in order, and none twice: at least so many segments.

        Where a session has seconds, a slow machine needs more of them.
        """
        count = max(segments, len(self.pushes())) if segments > 1 else 1
        expected = [f"alice/launch-{run}-{number}/1" for number in range(1, count + 1)]
        assert self.pushes() == expected, self.pushes()

    def session(self, run: str, segment: int = 1) -> Session:
        """The session of a segment, while its kernel is there."""
        return self.service.state.kernels[f"alice/launch-{run}-{segment}"].versions[-1].session

    def printed(self, run: str, segment: int = 1) -> int:
        """How many characters a session has printed."""
        return sum(len(line.data) for line in self.session(run, segment).log)

    def steps(self) -> list[int]:
        """The steps in the order in which they were trained, by the training's own ledger."""
        return [line["step"] for line in trainer.read(self.ledger) if "step" in line]

    def waits(self) -> list[int]:
        """The steps at which the training has waited."""
        return [line["waits"] for line in trainer.read(self.ledger) if "waits" in line]

    def judge(self, steps: int, model: Path, *, most: int = EVERY) -> int:
        """Fail unless each sample was trained on, in order, and none again beyond what a save allows; see trainer.judge."""
        return trainer.judge(self.ledger, model, steps, most)


def begun(account: KaggleAccount) -> collections.Counter[int]:
    """How often the training was begun, by the step behind which it began."""
    return collections.Counter(line["begin"] for line in trainer.read(account.ledger) if "begin" in line)


def habits(**changed: Any) -> Habits:
    """The stand-in's habits, with this Python in its sessions."""
    return Habits(python=sys.executable, **changed)
