"""What the stand-in for Lambda Cloud knows: accounts, types, capacity, instances over time, keys, and what all that costs.

Routes, fields and codes are those of the OpenAPI description 1.10.0; what no source says is marked *unverified*. Time is that
of a clock that is handed in, so an instance boots, and costs, as fast as a test wants.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from testbed.lambda_schema import ANSWERS, REQUESTS, mistakes

Body = dict[str, Any]
REGIONS = {"us-east-1": "Virginia, USA", "us-west-1": "California, USA", "europe-central-1": "Germany"}
STATUSES = ("booting", "active", "unhealthy", "terminating", "terminated", "preempted")


class Clock(Protocol):
    """What tells the time here."""

    def now(self) -> float:
        """Return the time."""


class RefusalError(Exception):
    """Raised when a call is refused: the HTTP status, the code, and the words that come with it."""

    def __init__(self, status: int, code: str, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.suggestion = status, code, message, suggestion

    @property
    def body(self) -> Body:
        """The body of the answer."""
        error = {"code": self.code, "message": self.message}
        return {"error": {**error, "suggestion": self.suggestion} if self.suggestion else error}


def invalid(message: str) -> RefusalError:
    """Return the refusal of a body that is not as it should be."""
    return RefusalError(400, "global/invalid-parameters", message)


def missing(what: str, status: int = 404) -> RefusalError:
    """Return the refusal of something that is not there."""
    return RefusalError(status, "global/object-does-not-exist", f"{what} does not exist")


@dataclass
class Type:
    """A type of instance, and the regions that have some free, with how many."""

    name: str
    card: str
    gpus: int
    cents: int
    free: dict[str, int]

    @property
    def body(self) -> Body:
        """As it stands in an answer."""
        specs = {
            "vcpus": 30 * self.gpus,
            "memory_gib": 200 * self.gpus,
            "storage_gib": 512,
            "gpus": self.gpus,
        }
        return {
            "name": self.name,
            "description": f"{self.gpus}x {self.card}",
            "gpu_description": self.card,
            "price_cents_per_hour": self.cents,
            "specs": specs,
        }


def usual_types() -> dict[str, Type]:
    """Return some types with the prices of skypilot-catalog's snapshot of 2026-08."""
    east, west = "us-east-1", "us-west-1"
    types = (
        Type("gpu_1x_a10", "A10 (24 GB PCIe)", 1, 129, {east: 100, west: 100}),
        Type("gpu_1x_a100", "A100 (40 GB PCIe)", 1, 199, {west: 100}),
        Type("gpu_1x_a100_sxm4", "A100 (40 GB SXM4)", 1, 199, {east: 100}),
        Type("gpu_8x_a100_80gb_sxm4", "A100 (80 GB SXM4)", 8, 2232, {east: 1}),
        Type("gpu_1x_h100_pcie", "H100 (80 GB PCIe)", 1, 329, {}),
        Type("gpu_1x_rtx6000", "RTX 6000 (24 GB)", 1, 69, {west: 100}),
    )
    return {one.name: one for one in types}


@dataclass
class Instance:
    """An instance. Times are by the clock; `status` None lets it go its way: booting, active, terminating, terminated."""

    id: str
    account: str
    body: Body
    type: Type
    launched: float
    active: float
    ip_from: float
    ip: str | None = None
    port: int = 22
    status: str | None = None
    asked_to_end: float | None = None
    gone: float | None = None
    lies: int = 0

    def tag(self, key: str) -> str:
        """Return the value of a tag; empty if it has none."""
        return next((tag["value"] for tag in self.body.get("tags", []) if tag["key"] == key), "")

    def status_at(self, now: float) -> str:
        """Return its status at a moment."""
        if self.gone is not None and now >= self.gone:
            return "terminated"
        if self.asked_to_end is not None:
            return "terminating"
        if self.status is not None:
            return self.status
        return "active" if now >= self.active else "booting"

    def is_alive(self, now: float) -> bool:
        """Whether its end was neither asked for, nor came."""
        return self.asked_to_end is None and (self.gone is None or now < self.gone)

    def cents(self, now: float) -> int:
        """Return what it has cost: each minute from the passing of health checks until its end was accepted."""
        until = self.asked_to_end if self.asked_to_end is not None else now
        minutes = math.ceil(max(0.0, until - self.active) / 60 - 1e-6) if math.isfinite(self.active) else 0
        return math.ceil(minutes * self.type.cents / 60)


@dataclass
class Habits:
    """How the service behaves beyond its calls; tests change it."""

    boot_s: float = 240.0  # 3 to 5 minutes for one card, second-hand
    ip_s: float = 30.0
    end_s: float = 20.0  # unverified
    lists_terminated_s: float = 0.0  # unverified: "your running instances"
    enforces_rates: bool = False
    request_s: float = 1.0
    launch_s: float = 12.0


@dataclass
class Account:
    """Someone who may call, by a key."""

    name: str
    key: str
    is_active: bool = True
    quota: int = 1000
    calls: list[float] = field(default_factory=list)
    launches: list[float] = field(default_factory=list)
    keys: dict[str, Body] = field(default_factory=dict)
    file_systems: list[Body] = field(default_factory=list)
    firewalls: list[Body] = field(default_factory=list)


class State:
    """All of it. A method named after a call answers its data for an account."""

    def __init__(self, clock: Clock) -> None:
        """Begin empty."""
        self.clock = clock
        self.habits = Habits()
        self.lock = threading.RLock()
        self.accounts: list[Account] = []
        self.kinds = usual_types()
        self.machines: dict[str, Instance] = {}
        self.violations: list[tuple[str, float]] = []
        self.late: list[tuple[float, Account, Body]] = []
        self.is_doubled = False  # the next launch makes two instances, and its answer names one
        self.on_start: Callable[[Instance], tuple[str, int]] = lambda _: (f"10.0.0.{len(self.machines)}", 22)
        self.on_end: Callable[[Instance], None] = lambda _one: None
        self.wrong_answers: list[str] = []
        self._numbers = iter(range(1, 10**9))

    def answer(self, call: str, who: Account, body: Any, item: str) -> Any:
        """Answer a call, whose body and answer are checked. Raises RefusalError."""
        self.pass_time()
        if call in REQUESTS and (wrong := mistakes(body, REQUESTS[call])):
            raise invalid("; ".join(wrong))
        data = getattr(self, call)(who, body, item)
        words = [wrong for wrong in mistakes(data, ANSWERS[call], call) if "status" not in wrong]
        self.wrong_answers += words
        return data

    def count(self, who: Account, call: str) -> bool:
        """Count a call against both rates; return whether it came too early."""
        with self.lock:
            return self._count(who, call)

    def _count(self, who: Account, call: str) -> bool:
        now, early = self.clock.now(), []
        if who.calls and now - who.calls[-1] < self.habits.request_s - 1e-3:
            early.append("request")
        if call == "launch":
            if who.launches and now - who.launches[-1] < self.habits.launch_s - 1e-3:
                early.append("launch")
            who.launches.append(now)
        who.calls.append(now)
        self.violations += [(what, now) for what in early]
        return bool(early)

    def pass_time(self) -> None:
        """Let happen what was due: launches that were accepted late, instances that have ended."""
        now = self.clock.now()
        due = [one for one in self.late if one[0] <= now]
        self.late = [one for one in self.late if one[0] > now]
        for _, who, body in due:
            with contextlib.suppress(RefusalError):
                self._start(who, body)

    # calls

    def types(self, _who: Account, _body: Any, _item: str) -> Body:
        """Return all types as they stand in an answer."""
        return {
            name: {
                "instance_type": one.body,
                "regions_with_capacity_available": [
                    _region(place) for place, free in one.free.items() if free
                ],
            }
            for name, one in self.kinds.items()
        }

    def launch(self, who: Account, body: Body, _item: str) -> Body:
        """Start an instance."""
        first = self._start(who, body)
        if self.is_doubled:
            self.is_doubled = False
            self._start(who, body)
        return {"instance_ids": [first.id]}

    def instances(self, who: Account, _body: Any, _item: str) -> list[Body]:
        """Return the account's instances."""
        return [self._shown(one) for one in self.list_of(who)]

    def list_of(self, who: Account) -> list[Instance]:
        """Return the instances that the account's list has."""
        now, since = self.clock.now(), self.habits.lists_terminated_s
        return [
            one
            for one in self.machines.values()
            if one.account == who.name and (one.gone is None or now < one.gone + since)
        ]

    def instance(self, who: Account, _body: Any, item: str) -> Body:
        """Return one instance."""
        return self._shown(self._find(who, item))

    def rename(self, who: Account, body: Body, item: str) -> Body:
        """Give an instance another name."""
        found = self._find(who, item)
        found.body["name"] = body.get("name", "")
        return self._shown(found)

    def terminate(self, who: Account, body: Body, _item: str) -> Body:
        """End instances: all of them, or none if one is unknown."""
        found = [self._find(who, one) for one in body["instance_ids"]]
        shown = []
        for one in found:
            if one.lies:
                one.lies -= 1
                shown.append({**self._shown(one), "status": "terminating"})
                continue
            if one.asked_to_end is None:
                one.asked_to_end = self.clock.now()
                one.gone = one.asked_to_end + self.habits.end_s
                one.type.free[one.body["region_name"]] = one.type.free.get(one.body["region_name"], 0) + 1
                self.on_end(one)
            shown.append(self._shown(one))
        return {"terminated_instances": shown}

    def keys(self, who: Account, _body: Any, _item: str) -> list[Body]:
        """Return the account's public keys."""
        return list(who.keys.values())

    def add_key(self, who: Account, body: Body, _item: str) -> Body:
        """Add a public key; one of the same name is refused (the code is unverified)."""
        if any(one["name"] == body["name"] for one in who.keys.values()):
            raise RefusalError(400, "global/duplicate", "a key of that name exists")
        made = {"id": f"key{next(self._numbers):029x}", **body}
        who.keys[made["id"]] = made
        return made

    def delete_key(self, who: Account, _body: Any, item: str) -> Body:
        """Remove a public key."""
        if who.keys.pop(item, None) is None:
            raise missing(f"the key {item}")
        return {}

    def file_systems(self, who: Account, _body: Any, _item: str) -> list[Body]:
        """Return the account's file systems."""
        return who.file_systems

    def firewalls(self, who: Account, _body: Any, _item: str) -> list[Body]:
        """Return the rulesets of the account's firewall; their fields are unverified but for the id."""
        return who.firewalls

    def images(self, _who: Account, _body: Any, _item: str) -> list[Body]:
        """Return an image in each region."""
        about = {"created_time": "2026-08-01T00:00:00+00:00", "updated_time": "2026-08-01T00:00:00+00:00"}
        named = {"name": "lambda-stack-24-04", "description": "Lambda Stack", "family": "lambda-stack-24-04"}
        made = {**about, **named, "version": "24.4.1", "architecture": "x86_64"}
        return [{"id": f"image-{place}", **made, "region": _region(place)} for place in REGIONS]

    # what tests ask

    def alive(self) -> list[Instance]:
        """Return the instances that nobody has asked to end."""
        with self.lock:
            self.pass_time()
            return [one for one in self.machines.values() if one.is_alive(self.clock.now())]

    def cents(self) -> int:
        """Return what all instances have cost."""
        return sum(one.cents(self.clock.now()) for one in self.machines.values())

    def stranger(self, who: Account, name: str, tags: dict[str, str] | None = None) -> Instance:
        """Start an instance that no client of a test asked for."""
        pairs = [{"key": key, "value": value} for key, value in (tags or {}).items()]
        key = next((one["name"] for one in who.keys.values()), "")
        body = {"region_name": "us-east-1", "instance_type_name": "gpu_1x_a10", "ssh_key_names": [key]}
        return self._make(who, {**body, "name": name, "tags": pairs}, self.kinds["gpu_1x_a10"])

    def _start(self, who: Account, body: Body) -> Instance:
        kind, place = self.kinds.get(body["instance_type_name"]), body["region_name"]
        if kind is None or place not in REGIONS:
            raise missing("the instance type" if kind is None else "the region", 400)
        if body["ssh_key_names"][0] not in [one["name"] for one in who.keys.values()]:
            raise missing("the SSH key", 400)
        for name in body.get("file_system_names", []):
            system = next((one for one in who.file_systems if one["name"] == name), None)
            if system is None:
                raise missing(f"the file system {name}", 400)
            if system["region"]["name"] != place:
                code = "instance-operations/launch/file-system-in-wrong-region"
                raise RefusalError(400, code, f"{name} is in {system['region']['name']}")
        for ruleset in body.get("firewall_rulesets", []):
            if ruleset["id"] not in [one["id"] for one in who.firewalls if one["region"]["name"] == place]:
                raise missing(f"the firewall ruleset {ruleset['id']}", 400)  # rulesets belong to a region
        if len([one for one in self.list_of(who) if one.is_alive(self.clock.now())]) >= who.quota:
            raise RefusalError(400, "global/quota-exceeded", "the quota of instances is used up")
        if not kind.free.get(place):
            code = "instance-operations/launch/insufficient-capacity"
            raise RefusalError(400, code, "Not enough capacity to fulfill launch request.")
        kind.free[place] -= 1
        return self._make(who, body, kind)

    def _make(self, who: Account, body: Body, kind: Type) -> Instance:
        now, made_id = self.clock.now(), f"{next(self._numbers):032x}"
        boots, has_ip = now + self.habits.boot_s, now + self.habits.ip_s
        made = Instance(made_id, who.name, dict(body), kind, now, boots, has_ip)
        self.machines[made_id] = made
        made.ip, made.port = self.on_start(made)
        return made

    def _find(self, who: Account, item: str) -> Instance:
        found = self.machines.get(item)
        if found is None or found not in self.list_of(who):
            raise missing(f"the instance {item}")
        return found

    def _shown(self, one: Instance) -> Body:
        """Return an instance as it stands in an answer."""
        now = self.clock.now()
        has_ip = one.ip is not None and now >= one.ip_from
        return {
            "id": one.id,
            "name": one.body.get("name", ""),
            **({"ip": one.ip, "private_ip": "10.19.0.7"} if has_ip else {}),
            "status": one.status_at(now),
            "ssh_key_names": one.body["ssh_key_names"],
            "file_system_names": one.body.get("file_system_names", []),
            "region": _region(one.body["region_name"]),
            "instance_type": one.type.body,
            "jupyter_token": "jupyter-secret",
            "jupyter_url": "https://jupyter.example/?token=jupyter-secret",
            "actions": {
                name: {"available": True}
                for name in ("migrate", "rebuild", "restart", "cold_reboot", "terminate")
            },
            **({"tags": one.body["tags"]} if one.body.get("tags") else {}),
        }


def _region(name: str) -> Body:
    return {"name": name, "description": REGIONS[name]}
