"""A toy provider of machines by the hour: one module, as `launcher/rental/providers/` has them. Its cloud is in this process.

`CLOUDS` has a cloud for each address. A test changes it, lets calls go wrong, and reads what it did and what that costs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from testbed.sim_clock import SimClock

from launcher.errors import ServiceAuthError, ServiceError, UnknownOutcomeError
from launcher.rental.provider import Placed, SshKey
from launcher.rental.provider import ProviderReason as Reason
from launcher.rental.rate_limit import Waits, say_nothing
from launcher.rental.rental_settings import RentalSettings
from launcher.rental.renting import Instance, InstanceOffer, InstanceState, Intent, LaunchOptions

NAME, TYPE, REGION = "toy", "toy-1", "here"
API, INSTANCES_PAGE = "https://toy.example/api", "https://toy.example/machines"


class ToySettings(RentalSettings):
    """What is rented at a cloud of ours."""

    provider: ClassVar[str] = NAME
    variable: ClassVar[str] = "TOY_KEY"
    usual_user: ClassVar[str] = "toy"
    api: str = API


SETTINGS = ToySettings


@dataclass
class Machine:
    """A machine. Times are by the clock; an end that `lies` is answered, and does not happen."""

    id: str
    nonce: str
    name: str
    launched: float
    cents: int
    asked_to_end: float = math.inf
    lies: int = 0


@dataclass
class Cloud:
    """What the provider has. `faults` go wrong with the next calls of a name, one each. `sent` are the keys that it was called with."""

    clock: SimClock
    cents: int = 60
    free: int = 9
    is_key_valid: bool = True
    machines: list[Machine] = field(default_factory=list)
    keys: list[SshKey] = field(default_factory=lambda: [SshKey(id="1", name="ours")])
    late: list[tuple[float, Intent]] = field(default_factory=list)
    faults: dict[str, list[str]] = field(default_factory=dict)
    launches: int = 0
    sent: list[str] = field(default_factory=list)

    def fault(self, call: str) -> str:
        """Return what goes wrong with a call; empty if nothing."""
        return self.faults[call].pop(0) if self.faults.get(call) else ""

    def make(self, intent: Intent) -> Machine:
        """Launch a machine."""
        number = f"toy-{len(self.machines)}"
        made = Machine(number, intent.nonce, intent.name, self.clock.now(), self.cents)
        self.machines.append(made)
        return made

    def pass_time(self) -> None:
        """Launch what was accepted late."""
        due = [intent for at, intent in self.late if at <= self.clock.now()]
        self.late = [one for one in self.late if one[0] > self.clock.now()]
        for intent in due:
            self.make(intent)


CLOUDS: dict[str, Cloud] = {}


class ToyKey(NamedTuple):
    """A person's key, which may be empty."""

    secret: str
    origin: str = "TOY_KEY"

    def is_in(self, text: str) -> bool:
        """Whether a text holds it."""
        return self.secret in text


def person_key() -> ToyKey | None:
    """Return this person's key; None without one."""
    secret = os.environ.get(ToySettings.variable)
    return ToyKey(secret) if secret else None


def connect(api: str, hears: Callable[[float], object]) -> Toy:
    """Return the account at an address; a cloud takes any key."""
    hears(CLOUDS[api].clock.now())
    return Toy(CLOUDS[api], person_key() or ToyKey(""))


class Toy:
    """The one account of a cloud."""

    name = NAME
    account = "toy-1"
    has_sent_launch = True

    def __init__(self, cloud: Cloud, key: ToyKey) -> None:
        """Use this cloud with this key."""
        self._cloud, self._key = cloud, key
        self.waits: Waits = say_nothing

    def offers(self) -> tuple[InstanceOffer, ...]:
        """Return the one type."""
        cloud = self._asked()
        places = (REGION,) if cloud.free else ()
        about = {"title": "a toy", "card": "T4", "cards": 1, "memory_gb": 16.0}
        return (InstanceOffer(type=TYPE, cents_per_hour=cloud.cents, regions=places, **about),)

    def launch(self, intent: Intent, setup: LaunchOptions) -> tuple[str, ...]:
        """Launch a machine, as its cloud has it."""
        cloud = self._asked()
        cloud.launches += 1
        fault = cloud.fault("launch")
        if not cloud.free:
            raise ServiceError(NAME, Reason.NO_CAPACITY, "toy: none is free")
        if setup.ssh_key not in [one.name for one in cloud.keys]:
            raise ServiceError(NAME, Reason.NOT_FOUND, f"toy: no key {setup.ssh_key}")
        if fault.startswith("late"):
            cloud.late.append((cloud.clock.now() + float(fault.split()[1]), intent))
        else:
            made = cloud.make(intent)
            if fault == "double":
                cloud.make(intent)
        if fault == "lost" or fault.startswith("late"):
            raise UnknownOutcomeError(NAME, Reason.BROKEN_OFF, "toy: no answer; it may have been accepted")
        return (made.id,)

    def instances(self) -> tuple[Instance, ...]:
        """Return the machines that are not gone."""
        cloud = self._asked()
        return tuple(found for one in cloud.machines if (found := self._shown(one)) is not None)

    def instance(self, instance_id: str) -> Instance | None:
        """Return a machine that is not gone."""
        return next((one for one in self.instances() if one.id == instance_id), None)

    def terminate(self, instance_id: str) -> bool:
        """End a machine in half a minute."""
        cloud = self._asked()
        found = [one for one in cloud.machines if one.id == instance_id and self._shown(one)]
        for one in found:
            if one.lies:
                one.lies -= 1
            else:
                one.asked_to_end = min(one.asked_to_end, cloud.clock.now())
        return bool(found)

    def ssh_keys(self) -> tuple[SshKey, ...]:
        """Return the keys."""
        return tuple(self._asked().keys)

    def add_key(self, name: str, public_key: str) -> None:
        """Add a key."""
        keys = self._asked().keys
        if name in [one.name for one in keys]:
            raise ServiceError(NAME, Reason.DUPLICATE, f"toy: there is a key {name}")
        keys.append(SshKey(id=f"key-{name}", name=name, public_key=public_key))

    def delete_key(self, key_id: str) -> None:
        """Remove a key."""
        self._cloud.keys = [one for one in self._asked().keys if one.id != key_id]

    def images(self) -> tuple[Placed, ...]:
        """Return none."""
        return ()

    def file_systems(self) -> tuple[Placed, ...]:
        """Return none."""
        return ()

    def firewalls(self) -> tuple[Placed, ...]:
        """Return none."""
        return ()

    def close(self) -> None:
        """Do nothing."""

    def _asked(self) -> Cloud:
        """Return the cloud as of now, a moment later. Raises ServiceAuthError without a valid key."""
        self._cloud.clock.sleep(1)
        self._cloud.sent.append(self._key.secret)
        self._cloud.pass_time()
        if not self._cloud.is_key_valid:
            raise ServiceAuthError(NAME, Reason.UNAUTHORIZED, "toy: the key is not valid")
        return self._cloud

    def _shown(self, one: Machine) -> Instance | None:
        now = self._cloud.clock.now()
        if now >= one.asked_to_end + 30:
            return None
        state = InstanceState.BOOTING if now < one.launched + 120 else InstanceState.ACTIVE
        if now >= one.asked_to_end:
            state = InstanceState.ENDING
        ip = "10.0.0.1" if state is InstanceState.ACTIVE else None
        return Instance(one.id, state, str(state), one.nonce, one.name, ip, REGION, TYPE, one.cents)
