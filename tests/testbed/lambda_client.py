"""Our client of the stand-in for Lambda Cloud, by a simulated clock; as a program, one that rents, waits and ends.

    python lambda_client.py BASE KEY FOLDER [kill=before:N|after:N] rent[=RUN] | launch=COUNT | reconcile | extend=SECONDS

With `kill` it kills itself at its Nth wait for the disk, before or after that. Processes that share a folder share the
clock, the pace and the ledger.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from testbed.sim_clock import SimClock

from launcher.rental.lease import extend
from launcher.rental.lease.renter import ProviderAccount
from launcher.rental.ledger import RentalLedger
from launcher.rental.providers.lambda_cloud import LambdaAccount, log_in
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.rental.rate_limit import RateLimit
from launcher.rental.reconcile import Reconciled, reconcile
from launcher.rental.records import RentalRecord, RentedMachine
from launcher.rental.renting import InstanceOffer, Intent, LaunchOptions
from launcher.rental.verdict import RentalVerdict
from launcher.values.host import Host

RUN = "261122-sft-k3f9w2"
SETUP = LaunchOptions(ssh_key="ours")
REGION = "us-east-1"


def service(base: str, key: str, folder: Path, clock: SimClock | None = None) -> LambdaAccount:
    """Return our client; its pace is in a folder."""
    clock = clock or SimClock(folder / "clock")
    return log_in({"LAMBDA_API_KEY": key}, folder, RateLimit(folder / "pace", "lambda", clock), base)


def renter(base: str, key: str, folder: Path) -> ProviderAccount:
    """Return a renter whose ledger is in a folder."""
    clock = SimClock(folder / "clock")
    return ProviderAccount(
        service(base, key, folder, clock), RentalLedger(folder / "rentals"), clock, "laptop"
    )


def offer(name: str = "gpu_1x_a10", cents_per_hour: int = 129) -> InstanceOffer:
    """Return an offer of one card."""
    return InstanceOffer(
        type=name,
        title="1x A10",
        card="A10",
        cards=1,
        memory_gb=24,
        cents_per_hour=cents_per_hour,
        regions=(REGION,),
    )


def intent(**values: object) -> Intent:
    """Return what is on disk before a launch."""
    about = {"provider": "lambda", "account": "lambda-1", "run": RUN, "nonce": "abc", "client": "laptop"}
    price = {"type": "gpu_1x_a10", "region": REGION, "cents_per_hour": 129, "time": 0, "deadline": 0}
    return Intent.model_validate({**about, **price, **values})


def is_anything_billed(done: Reconciled) -> bool:
    """Whether anything of ours may still cost something, wanted or not."""
    judged = [one for one in done.judged if one.verdict is RentalVerdict.WANTED]
    return done.is_anything_left or any(one.instance is not None for one in judged)


def rent_and_end(at: ProviderAccount, run: str = RUN) -> None:
    """Rent an instance, wait until it is ready, and end it."""
    rental, lock = at.rent(offer(), REGION, run, at.clock.now() + 8 * 3600, SETUP)
    at.wait_until_ready(rental, 900, lambda *_: None)
    at.end(rental, "done")
    lock.release()


def launch_many(at: LambdaAccount, count: int) -> None:
    """Launch some instances, each by a thread of its own."""
    threads = [threading.Thread(target=at.launch, args=(intent(), SETUP)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class ToldMachine:
    """In place of a login to a rented machine: until when that is rented is written to a file `told`, as it would be there."""

    def __init__(self, folder: Path, clock: SimClock) -> None:
        """Write into this folder."""
        self._file, self._clock = folder / "told", clock

    def note_end(self, left_s: float, _run: str | None = None) -> None:
        """Be told; this waits for the disk, which is a point at which a client may be killed."""
        with self._file.open("w") as file:
            file.write(str(self._clock.now() + left_s))
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Log out of nothing."""


def give_more_time(at: ProviderAccount, folder: Path, seconds: float) -> None:
    """Give the one rental of a folder more time, as `launch extend` does."""
    (rental,) = at.ledger.rentals()
    machine = Host(name="rented", address="192.0.2.1", user="ubuntu")
    settings = LambdaSettings()
    record = RentalRecord(run=RUN, nonce=rental.nonce, machine=machine, settings=settings, runs=str(folder))
    extend.open_account = lambda _settings: at
    extend.ledger = lambda: at.ledger
    extend.InstanceLogin = lambda _machine: ToldMachine(folder, at.clock)
    found = RentedMachine(rental, record)
    extend.cost_with(found, seconds)
    extend.extend(found, seconds)


def kill_at(spec: str) -> None:
    """Kill this process at its Nth wait for the disk."""
    when, _, number = spec.partition(":")
    sync, counted = os.fsync, [0]

    def counting(descriptor: int) -> None:
        counted[0] += 1
        if counted[0] == int(number) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)
        if counted[0] == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = counting


def main() -> None:
    """Do what the words say."""
    base, key, folder, *words = sys.argv[1:]
    for word in words:
        verb, _, value = word.partition("=")
        if verb == "kill":
            kill_at(value)
        elif verb == "launch":
            launch_many(service(base, key, Path(folder)), int(value))
        elif verb == "extend":
            give_more_time(renter(base, key, Path(folder)), Path(folder), float(value))
        elif verb == "reconcile":
            print(is_anything_billed(reconcile(renter(base, key, Path(folder)))))
        else:
            rent_and_end(renter(base, key, Path(folder)), value or RUN)


if __name__ == "__main__":
    main()
