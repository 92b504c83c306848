"""A client with several hosts, and items that write a ledger outside of their runs: who began, and who ended."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed.client import Client, processes_of
from testbed.engine import BASE, Engine
from testbed.kaggle_account import HOST, KaggleAccount
from testbed.kept import give_agent, keep_agent
from testbed.lambda_cloud import LambdaCloud
from testbed.sshd import SshHost

ITEM = """
import os, sys, time
item, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
def note(word):
    for ledger in ({ledger!r}, {inner!r}):
        try:
            with open(ledger, "a") as file:
                file.write("%s %s %s\\n" % (word, item, os.getcwd()))
            return
        except FileNotFoundError:
            pass  # a container, or a machine with a disk of its own
note("begin")
if "fail" in sys.argv[4:]:
    sys.exit("it fails")
for step in range(1, steps + 1):
    print({{"step": step, "loss": round(1 / step + len(item), 4)}}, flush=True)
    time.sleep(pause)
    while os.path.exists({ledger!r} + ".gate"):
        time.sleep(0.02)
os.makedirs("out", exist_ok=True)
open("out/result", "w").write(item)
note("end")
"""
KILLED = """
import os, signal, threading
from launcher.batch import batch_queue
lock = threading.Lock()
count, when = int(os.environ["KILL_AT"]), os.environ["KILL_WHEN"]
step = batch_queue.BatchQueue.step
def dying(self, *values, **more):
    global count
    with lock:  # several threads make transitions
        count -= 1
        is_last = count == 0
    if is_last and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    done = step(self, *values, **more)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
batch_queue.BatchQueue.step = dying
from launcher.cli import main
main()
"""
"""A client that dies before, or after, a certain transition of its batch."""


DOCKER_USER = "ada"
INNER = f"/home/{DOCKER_USER}/.launch/cache/ledger"
"""The ledger that items in containers write: of the host's folders they have the cache."""


class Batches:
    """A client with the hosts `local`, `A` and `B` (over SSH, each a root of its own), and `gone`, which nobody reaches."""

    def __init__(self, client: Client, ssh_host: SshHost, folder: Path) -> None:
        """Write the project, beside the tables of hosts that are there; nothing is launched."""
        self.client, self.folder = client, folder
        self.ledger = folder / "ledger"
        self.roots = {"A": folder / "A", "B": folder / "B", "local": client.home / ".launch"}
        tables = []
        for name in ("A", "B"):
            (folder / name).mkdir()
            shutil.chown(folder / name, ssh_host.user)
            give_agent(ssh_host, folder / name)
            tables.append(ssh_host.table(name=name, root=str(folder / name)))
        gone = '[hosts.gone]\naddress = "127.0.0.1"\nport = 1\n'
        with (client.project / "launch.toml").open("a") as file:
            file.write("\n".join([*tables, gone]))
        self.ledger.touch()
        self.ledger.chmod(0o666)
        client.script(ITEM.format(ledger=str(self.ledger), inner=INNER), "item.py")
        self._ledgers = [self.ledger]

    def add_docker(self, engine: Engine) -> None:
        """Add the host `dock`, whose items run in containers of that engine. Its root is empty at first."""
        home = engine.machine.homes / DOCKER_USER
        self.roots["dock"] = home / ".launch"
        engine.machine.ssh("rm", "-rf", ".launch/runs", ".launch/cache/ledger", user=DOCKER_USER)
        self._ledgers.append(home / Path(INNER).relative_to(f"/home/{DOCKER_USER}"))
        table = engine.machine.table("dock", user=DOCKER_USER, runtime="docker")
        with (self.client.project / "launch.toml").open("a") as file:
            file.write(f'\n{table}\n[hosts.dock.build]\nbase = "{BASE}"\n')

    def write(self, runs: list[dict[str, Any]], name: str = "sweep", **keys: Any) -> str:
        """Write a batch's file with these runs and keys; return its name."""
        lines = [f"{key} = {_toml(value)}" for key, value in {"profile": "cpu", **keys}.items()]
        for run in runs:
            lines += ["[[run]]", *(f"{key} = {_toml(value)}" for key, value in run.items())]
        path = self.client.project / f"{name}.toml"
        path.write_text("\n".join([*lines, ""]))
        return path.name

    def items(self, count: int, steps: int = 2, pause: float = 0.05, **keys: Any) -> list[dict[str, Any]]:
        """Return runs of the item's program."""
        return [
            {
                "name": f"i{number}",
                "command": ["python3", "item.py", f"i{number}", str(steps), str(pause)],
                **keys,
            }
            for number in range(1, count + 1)
        ]

    def rows(self, name: str = "") -> dict[str, dict[str, Any]]:
        """What `launch batch status --json` says of each item."""
        words = ["batch", "status", *([name] if name else []), "--json"]
        found = map(json.loads, self.client.ok(*words).splitlines())
        return {row["name"]: row for row in found}

    def hold(self) -> None:
        """Let items wait after their first step."""
        Path(f"{self.ledger}.gate").touch()

    def go_on(self) -> None:
        """Let them go on."""
        Path(f"{self.ledger}.gate").unlink()

    # the witnesses

    def noted(self, word: str) -> collections.Counter[str]:
        """How often each item has begun, or ended, by its own word."""
        texts = [ledger.read_text() for ledger in self._ledgers if ledger.exists()]
        lines = [line.split() for text in texts for line in text.splitlines()]
        return collections.Counter(item for said, item, _ in lines if said == word)

    def runs_on(self, host: str) -> dict[str, str | None]:
        """The state of each run below a root, by the files alone."""
        found = {}
        for run in (self.roots[host] / "runs").glob("[0-9]*"):
            states = sorted((run / "record").glob("[0-9]*/state.json"))
            found[run.name] = json.loads(states[-1].read_text())["state"] if states else None
        return found

    def judge_clouds(self, account: KaggleAccount, cloud: LambdaCloud) -> None:
        """Each item of an account was pushed once; nothing that is paid for, or on the web, is left, and each item's cost is told.

        A session that ended early has a successor: the sessions of a run count on from 1, and each has one version. What a
        killed worker had rented for nothing is part of what its item costs.
        """
        rows = self.rows().values()
        sessions: dict[str, list[str]] = {}
        for pushed in sorted(account.pushes()):
            found = re.fullmatch(r"alice/launch-(.+)-([0-9]+)/1", pushed)
            assert found is not None, f"{pushed}: pushed twice"
            sessions.setdefault(found[1], []).append(found[2])
        assert sessions.keys() == {row["run"] for row in rows if row["host"] == HOST}
        for run, numbers in sessions.items():
            assert sorted(map(int, numbers)) == [*range(1, len(numbers) + 1)], f"{run}: {numbers}"
        self.client.ok("reconcile")
        cloud.until_gone()
        paid = collections.Counter[str]()
        for rental in cloud.rentals():
            cents = [rental.cents, *(extra.cents for extra in rental.extras)]
            paid[rental.intent.run.split("-")[1]] += sum(filter(None, cents))
        assert {row["name"]: row["cost"] for row in rows if row["host"] == "rented"} == {
            name: pytest.approx(cents / 100) for name, cents in paid.items()
        }

    def judge_docker(self, engine: Engine) -> None:
        """Each item of the host `dock` has one container, by the engine, which was started once."""
        names = engine.docker("ps", "-a", "--format", "{{.Names}}").split()
        runs = [row["run"] for row in self.rows().values() if row["host"] == "dock"]
        wrong = {*names} ^ {f"launch-{run}" for run in runs}
        assert not wrong, engine.docker("ps", "-a", "--no-trunc")
        assert len(names) == len(runs)
        assert all(
            engine.docker("inspect", "--format", "{{.RestartCount}}", name).strip() == "0" for name in names
        )

    def judge(self, items: list[str]) -> None:
        """Each item began once and ended once, in one run; no run is prepared and left; its file came home."""
        assert self.noted("begin") == collections.Counter(items)
        assert self.noted("end") == collections.Counter(items)
        states = {run: state for host in self.roots for run, state in self.runs_on(host).items()}
        assert [*states.values()] == ["succeeded"] * len(items), states
        results = [path.read_text() for path in self.client.runs.glob("[0-9]*/outputs/out/result")]
        assert sorted(results) == sorted(items)

    def judge_all_but(self, stuck: str, items: list[str]) -> dict[str, dict[str, Any]]:
        """Each item began once and ended once, where the table says; the stuck one is still queued. Return the table's rows."""
        assert self.noted("begin") == collections.Counter(items)
        assert self.noted("end") == collections.Counter(items)
        rows = self.rows()
        states = collections.Counter(row["state"] for row in rows.values())
        assert states == {"succeeded": len(items), "queued": 1}
        assert rows[stuck]["state"] == "queued"
        results = [path.read_text() for path in self.client.runs.glob("[0-9]*/outputs/out/result")]
        assert sorted(results) == sorted(items)
        for host in self.roots:
            assert set(self.runs_on(host)) == {row["run"] for row in rows.values() if row["host"] == host}
            assert set(self.runs_on(host).values()) <= {"succeeded"}
        return rows

    def dying(self, count: int, when: str) -> None:
        """Let the client's next commands die at a transition."""
        self.client.program = [sys.executable, "-c", KILLED]
        self.client.variables |= {"KILL_AT": str(count), "KILL_WHEN": when}

    def living(self) -> None:
        """Let them live again."""
        self.client.program = type(self.client).program

    def clear_away(self) -> None:
        """End what is left of its commands, then of all runs: a worker would begin others."""
        self.client.end_commands()
        for run in (path for root in self.roots.values() for path in (root / "runs").glob("[0-9]*")):
            for pid in processes_of(run):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _toml(value: Any) -> str:
    return json.dumps(value)


def names(count: int) -> list[str]:
    """The names of so many items."""
    return [f"i{number}" for number in range(1, count + 1)]


@contextlib.contextmanager
def batches_for(client: Client, ssh_host: SshHost) -> Iterator[Batches]:
    """Yield a client with several hosts; what they still run is ended."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    made = Batches(client, ssh_host, folder)
    try:
        yield made
    finally:
        made.clear_away()
        keep_agent(ssh_host, folder / "A")
        shutil.rmtree(folder, ignore_errors=True)
