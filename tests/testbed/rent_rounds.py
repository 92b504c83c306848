"""Rounds of a rent whose client is killed, end to end: each has an account, machines and a client of its own."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testbed.client import Client, missing, until
from testbed.lambda_cloud import LambdaCloud, lambda_cloud_for
from testbed.missing_part import MissingPartError
from testbed.rents import WHOLE_ROUNDS, Tally, Witness

LAUNCH = ("--host", "rented", "--profile", "a100_40gb", "--", "python3", "train.py")
FILES = 61
TRAIN = f"""
import os, sys, time
os.makedirs("out")
for number in range({FILES - 1}):
    open(f"out/{{number}}", "w").write(str(number) * 5000)
while "wait" in sys.argv and not os.path.exists("/home/ubuntu/go"): time.sleep(0.05)
open("out/finished", "w").write("yes")
"""
CALLS = (
    *("types", "keys", "add_key", "launch", "instances", "instances", "instances", "instances"),
    *("instances", "terminate", "instances", "keys", "delete_key"),
)
"""Of a launch that nobody kills: the offers, our key, the launch, four looks while it boots; at the end the list, the end, the list, our key."""


class Round:
    """A client with a script, an account with somebody else's instance, and machines that boot quickly."""

    def __init__(self, cloud: LambdaCloud, turn: int, dice: random.Random) -> None:
        """Prepare the round of this number."""
        self.cloud, self.client, self.service = cloud, cloud.client, cloud.service
        self.turn, self.dice = turn, dice
        cloud.client.script(TRAIN)
        state = cloud.service.state
        state.habits.boot_s, state.habits.end_s = 15, 4
        self.witness = Witness(cloud.service, [state.stranger(state.accounts[0], "research")])

    def launch(self, *more: str) -> subprocess.Popen[str]:
        """Start a client that rents."""
        return self.client.start(*LAUNCH, *more)

    def let_come_late(self, wait_s: float) -> None:
        """Let the last launch, which was not accepted, make its instance after a while."""
        state, (*_, line) = self.service.state, self.service.of("launch")
        state.late.append((state.clock.now() + wait_s, state.accounts[0], line["body"]))

    def reconciles(self) -> list[subprocess.Popen[str]]:
        """Start two at once."""
        return [self.client.start("reconcile") for _ in range(2)]

    def judge(self, begun: Sequence[subprocess.Popen[str]] = ()) -> None:
        """After two reconciles nothing of ours lives but what a process looks after; in the end nothing does, and all is home.

        `begun` are two that were started before; else two run at once.
        """
        for one in begun:
            _, said = one.communicate(timeout=300)
            assert "Traceback" not in said, said
        if not begun:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda _: self.client.run("reconcile"), range(2)))
        self.witness.check_single()
        held = {one.instance for one in self.cloud.rentals() if self.cloud.ledger.is_held(one.nonce)}
        assert {one.id for one in self.witness.alive} <= held
        self.cloud.until_gone()
        book, rentals = self.cloud.ledger, self.cloud.rentals()
        until(
            lambda: not [one for one in rentals if book.is_held(one.nonce)], "the end of a keeper", every=0.2
        )
        self.cloud.clock.sleep(300)  # what was on its way has come
        done = self.client.run("reconcile")
        assert done.returncode == 0, done.stderr
        self.witness.check_over(self.cloud.rentals())
        assert self.lost() == []

    def until_home(self, count: int, bringer: subprocess.Popen[str] | None = None) -> None:
        """Wait until so many of its files are here; fail with the last words of who brings them if that ends before."""

        def came() -> bool:
            if self.files_home() >= count:
                return True
            assert bringer is None or bringer.poll() is None, "".join(bringer.communicate())
            return False

        until(came, "files that come home", timeout=300, every=0.01)

    def files_home(self) -> int:
        """Return how many of its files are here."""
        return len([*self.client.runs.glob("2*/outputs/out/*")])

    def lost(self) -> list[str]:
        """Return the files of finished trainings, on any machine's disk, that are not home byte for byte."""
        lost = []
        for run, folder in self.finished().items():
            there, here = sums(folder), sums(self.client.runs / run / "outputs" / "out")
            lost += [f"{run}: {name}" for name, digest in there.items() if here.get(name) != digest]
        return lost

    def finished(self) -> dict[str, Path]:
        """Return what finished trainings have written, by their run, on the disks of machines dead or alive."""
        found = {}
        for machine in self.cloud.instances.machines.values():
            for last in machine.homes.glob("ubuntu/.launch/runs/*/work/**/out/finished"):
                run = next(one.name for one in last.parents if one.parent.name == "runs")
                found[run] = last.parent
        return found

    def add_to(self, tally: Tally, *, killed: bool) -> None:
        """Count this round."""
        tally.add(self.witness, self.cloud.rentals(), killed=killed)


def rounds(folder: Path, name: str) -> Generator[Round]:
    """Yield the rounds of a point."""
    dice = random.Random(name)
    for turn in range(WHOLE_ROUNDS):
        client = Client(folder / str(turn))
        try:
            with lambda_cloud_for(client, folder / str(turn)) as made:
                yield Round(made, turn, dice)
        except MissingPartError as error:
            missing(str(error))


def sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder."""
    if not folder.is_dir():
        return {}
    said = subprocess.run(["sh", "-c", "sha256sum *"], cwd=folder, capture_output=True, text=True, check=True)
    return {line[66:]: line[:64] for line in said.stdout.splitlines()}
