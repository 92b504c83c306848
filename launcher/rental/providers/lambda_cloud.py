"""Lambda Cloud as a provider: a typed method for each call, and a named reason for each failure.

Routes and bodies follow its OpenAPI description 1.10.0. Nothing was tried against the real service. Every
call waits for its turn, see rate_limit.py. A call refused with 429 had no effect, so it is repeated a few
times. No other call is repeated here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from launcher.base.clock import SystemClock
from launcher.base.text import printable
from launcher.errors import ServiceAuthError, ServiceError, ServiceUnreachableError, UnknownOutcomeError
from launcher.rental.offers import card_memory
from launcher.rental.provider import Placed, SshKey
from launcher.rental.provider import ProviderReason as Reason
from launcher.rental.providers.lambda_api import (
    PAGE,
    Firewall,
    LambdaFileSystem,
    LambdaImage,
    Launched,
    ListedInstance,
    Meaning,
    TypeOffer,
    meaning_of,
)
from launcher.rental.providers.lambda_credentials import KEYS_PAGE, VARIABLE, LambdaKey, find_key, key_files
from launcher.rental.providers.lambda_settings import API, LambdaSettings
from launcher.rental.rate_limit import MAX_WAIT_S, RateLimit, Waits, back_off_s, say_nothing, usual_pace
from launcher.rental.renting import (
    TAGS,
    Instance,
    InstanceOffer,
    InstanceState,
    Intent,
    LaunchOptions,
    nonce_in,
)
from launcher.transport.http.service_wire import (
    CallFailure,
    ServiceReply,
    ServiceWire,
    WireError,
    is_undecided,
)
from launcher.values.base import Record

SETTINGS = LambdaSettings
NAME = SETTINGS.provider
INSTANCES_PAGE = f"{PAGE}/instances"
TRIES = 6
"""The number of tries of a call that is answered with 429."""
STATUS = {
    401: Reason.UNAUTHORIZED,
    403: Reason.FORBIDDEN,
    404: Reason.NOT_FOUND,
    409: Reason.CONFLICT,
    413: Reason.TOO_LARGE,
    429: Reason.RATE_LIMIT,
}
UNDECIDED = (Reason.SERVER_ERROR, Reason.UPSTREAM)
"""The reasons that leave open whether a launch was accepted, whatever the status of the answer."""
MENDS = {
    Reason.UNAUTHORIZED: f"make a new key at {KEYS_PAGE}, and set {VARIABLE}",
    Reason.RATE_LIMIT: "another machine or program may be using the same account: wait, then try again",
}
"""The remedies for answers without a documented code."""
STATES = {
    "booting": InstanceState.BOOTING,
    "active": InstanceState.ACTIVE,
    "unhealthy": InstanceState.UNHEALTHY,
    "terminating": InstanceState.ENDING,
    "terminated": InstanceState.GONE,
    "preempted": InstanceState.PREEMPTED,
}
"""The `InstanceState` of each documented status.

Any other status is UNKNOWN: still billed, and never ready.
"""
NONCE_TAG = TAGS[1]
MAX_WORDS = 100
"""The most characters of the service's own texts that are shown."""
A = TypeVar("A", bound=Record)


def person_key() -> LambdaKey | None:
    """Return this user's key, or None. Raises BadFileError for a file that others can read."""
    return find_key(os.environ, Path.home())


def connect(api: str, hears: Callable[[float], object]) -> LambdaAccount:
    """Return the account of this user's key. No call is made yet. Raises BadFileError or ServiceAuthError."""
    cloud = log_in(os.environ, Path.home(), usual_pace(api, SystemClock()), api)
    cloud.hears = hears
    return cloud


def log_in(variables: Mapping[str, str], home: Path, pace: RateLimit, api: str = API) -> LambdaAccount:
    """Return the account of a user's key. No call is made yet. Raises BadFileError or ServiceAuthError."""
    key = find_key(variables, home)
    if key is None:
        files = " or ".join(str(path) for path in key_files(variables, home))
        raise ServiceAuthError(
            NAME,
            Reason.NO_CREDENTIALS,
            f"{NAME}: no API key: {VARIABLE} is not set, and there is no {files}\n"
            f"  make one at {KEYS_PAGE}, then   export {VARIABLE}=…",
        )
    return LambdaAccount(key, ServiceWire(api), pace, api)


class LambdaAccount:
    """One account at Lambda Cloud."""

    name = NAME

    def __init__(self, key: LambdaKey, wire: ServiceWire, pace: RateLimit, api: str = API) -> None:
        """Use this key over this wire, with this rate limit."""
        self._key, self._wire, self._pace = key, wire, pace
        self._draw = random.Random()  # noqa: S311 — it only spreads calls
        self.account = f"{NAME}-{key.fingerprint(api)}"
        self.has_sent_launch = False
        """Whether the last launch may have reached the service.

        False if it was interrupted before its turn.
        """
        self.waits: Waits = say_nothing
        self.hears: Callable[[float], object] = lambda _date: None
        """Called with the `Date` of each answer, in seconds since 1970."""

    def offers(self) -> tuple[InstanceOffer, ...]:
        """Return the types with their prices, and the regions with a free instance. Skip unreadable types."""
        what = "listing the instance types"
        data = self._get("instance-types", what)
        items = list(data.values()) if isinstance(data, dict) else []
        read = [found for item in items if (found := _read_or_none(TypeOffer, item)) is not None]
        if not read:
            raise self._malformed(what)
        return tuple(_offer(found) for found in read)

    def launch(self, intent: Intent, setup: LaunchOptions) -> tuple[str, ...]:
        """Launch an instance that carries the intent's nonce in its name and a tag.

        Call it only once per intent, whatever the outcome. Raises UnknownOutcomeError if the launch may have been
        accepted; look for the instance in `instances`. After any other error it was not accepted.
        """
        what = f"launching {intent.type} in {intent.region}"
        self.has_sent_launch = False
        body = _launch_body(intent, setup)
        try:
            reply = self._call("POST", "instance-operations/launch", body, is_launch=True)
        except WireError as error:
            if error.was_sent:
                raise self._unsettled(what, Reason(error.failure), str(error)) from None
            raise self._lost(what, error) from None
        meaning = _meaning(reply)
        if is_undecided(reply.status) or (meaning and meaning.reason in UNDECIDED):
            reason = meaning.reason if meaning else Reason.SERVER_ERROR
            raise self._unsettled(what, reason, f"it answered {reply.status}")
        self._check(reply, what)
        try:
            return tuple(self._read(Launched, self._data(reply, what), what).instance_ids)
        except ServiceError:
            raise self._unsettled(what, Reason.MALFORMED, "its answer names no instance") from None

    def instances(self) -> tuple[Instance, ...]:
        """Return the account's instances.

        An invalid field is ignored. If an entry has no id, the whole list is an error.
        """
        return tuple(
            _instance(one) for one in self._list(ListedInstance, "instances", "listing the instances")
        )

    def instance(self, instance_id: str) -> Instance | None:
        """Return one instance of the account, or None if it does not exist."""
        what = f"the instance {instance_id}"
        try:
            data = self._get(f"instances/{quote(instance_id, safe='')}", what)
        except ServiceError as error:
            if error.reason != Reason.NOT_FOUND:
                raise
            return None
        return _instance(self._read(ListedInstance, data, what))

    def terminate(self, instance_id: str) -> bool:
        """Ask for the termination of an instance, which also ends its billing.

        Return False if the service does not know it.
        """
        body = {"instance_ids": [instance_id]}
        try:
            self._answer(
                "POST", "instance-operations/terminate", body, f"terminating the instance {instance_id}"
            )
        except ServiceError as error:
            if error.reason != Reason.NOT_FOUND:
                raise
            return False
        return True

    def ssh_keys(self) -> tuple[SshKey, ...]:
        """Return the account's public keys."""
        return self._list(SshKey, "ssh-keys", "listing the SSH keys")

    def add_key(self, name: str, public_key: str) -> None:
        """Add a public key. The reason is DUPLICATE if the name exists."""
        body, what = {"name": name, "public_key": public_key}, f"adding the SSH key {name}"
        self._data(self._answer("POST", "ssh-keys", body, what), what)

    def delete_key(self, key_id: str) -> None:
        """Remove a public key from the account. Existing instances keep it."""
        what = f"removing the SSH key {key_id}"
        self._data(self._answer("DELETE", f"ssh-keys/{quote(key_id, safe='')}", None, what), what)

    def images(self) -> tuple[Placed, ...]:
        """Return the image families, each once per region."""
        found = self._list(LambdaImage, "images", "listing the images")
        return tuple(Placed(one.family, one.region.name if one.region else None) for one in found)

    def file_systems(self) -> tuple[Placed, ...]:
        """Return the account's file systems."""
        found = self._list(LambdaFileSystem, "file-systems", "listing the file systems")
        return tuple(Placed(one.name, one.region.name if one.region else None) for one in found)

    def firewalls(self) -> tuple[Placed, ...]:
        """Return the account's rulesets, by id. An instance can use only those of its region."""
        found = self._list(Firewall, "firewall-rulesets", "listing the firewall rulesets")
        return tuple(Placed(one.id, one.region.name if one.region else None) for one in found)

    def close(self) -> None:
        """Close the connections."""
        self._wire.close()

    def __repr__(self) -> str:
        return f"LambdaAccount({self._key!r})"

    def _get(self, path: str, what: str) -> Any:
        return self._data(self._answer("GET", path, None, what), what)

    def _list(self, kind: type[A], path: str, what: str) -> tuple[A, ...]:
        items = self._get(path, what)
        if not isinstance(items, list):
            raise self._malformed(what)
        return tuple(self._read(kind, item, what) for item in items)

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None, what: str) -> ServiceReply:
        """Make a call that may be repeated. Return its answer. Raise its error."""
        try:
            reply = self._call(method, path, body)
        except WireError as error:
            raise self._lost(what, error) from None
        self._check(reply, what)
        return reply

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, is_launch: bool = False
    ) -> ServiceReply:
        """Make a call in its turn. Repeat it if it is refused with 429. Raises WireError."""
        for refusals in range(1, TRIES + 1):
            with self._pace.turn(is_launch=is_launch, waits=self.waits) as turn:
                self.has_sent_launch |= is_launch
                reply = self._wire.ask(method, path, body, self._key.header())
                if reply.moment is not None:
                    self.hears(reply.moment)
                if reply.status != 429:
                    return reply
                self.has_sent_launch &= not is_launch
                turn.hold_off(back_off_s(refusals, reply.retry_s, self._draw))
            if (reply.retry_s or 0.0) > MAX_WAIT_S:
                break  # the caller raises the error, because the wait could take hours
        return reply

    def _data(self, reply: ServiceReply, what: str) -> Any:
        said = reply.json()
        if not isinstance(said, dict) or "data" not in said:
            raise self._malformed(what)
        return said["data"]

    def _read(self, kind: type[A], item: object, what: str) -> A:
        try:
            return kind.lenient(_without_nulls(item))
        except ValidationError:
            raise self._malformed(what) from None

    def _check(self, reply: ServiceReply, what: str) -> None:
        """Raise the error of an answer: by the code in its JSON, else by its status."""
        if reply.status < 300:
            return
        meaning = _meaning(reply)
        if meaning is None:
            usual = Reason.SERVER_ERROR if is_undecided(reply.status) else Reason.BAD_REQUEST
            reason = STATUS.get(reply.status, usual)
            meaning = Meaning(reason, MENDS.get(reason, ""))
        error = _refusal(reply)
        said = " ".join(filter(None, (error.get(key) for key in ("message", "suggestion"))))
        message = printable(self._key.redact(said)[:300])
        words = f"{NAME}: {what}: {reply.status}{f' {message}' if message else ''}"
        mend = f"\n  {meaning.mend}" if meaning.mend else ""
        kind = {
            Reason.UNAUTHORIZED: ServiceAuthError,
            Reason.SERVER_ERROR: ServiceUnreachableError,
            Reason.UPSTREAM: ServiceUnreachableError,
        }.get(meaning.reason, ServiceError)
        raise kind(NAME, meaning.reason, f"{words}{mend}", reply.retry_s)

    def _malformed(self, what: str) -> ServiceError:
        return ServiceError(NAME, Reason.MALFORMED, f"{NAME}: {what}: its answer cannot be read")

    def _lost(self, what: str, error: WireError) -> ServiceError:
        """Return the error for a call without an answer."""
        kind = ServiceError if error.failure is CallFailure.TOO_LARGE else ServiceUnreachableError
        return kind(NAME, Reason(error.failure), f"{NAME}: {what}: {error}")

    def _unsettled(self, what: str, reason: Reason, words: str) -> UnknownOutcomeError:
        return UnknownOutcomeError(NAME, reason, f"{NAME}: {what}: {words}; it may have been accepted")


def _launch_body(intent: Intent, setup: LaunchOptions) -> Mapping[str, object]:
    """Return the body of a launch. It has no `quantity`, because the service accepts only one."""
    optional = {
        "image": {"family": setup.image} if setup.image else None,
        "file_system_names": list(setup.file_systems),
        "firewall_rulesets": [{"id": name} for name in setup.firewalls],
        "user_data": setup.user_data,
    }
    return {
        "region_name": intent.region,
        "instance_type_name": intent.type,
        "ssh_key_names": [setup.ssh_key],
        "name": intent.name,
        "tags": [{"key": key, "value": value} for key, value in intent.tags.items()],
        **{key: value for key, value in optional.items() if value},
    }


def _refusal(reply: ServiceReply) -> dict[str, str]:
    """Return the text fields of a refusal: its code, message and suggestion."""
    said = reply.json()
    error = said.get("error") if isinstance(said, dict) else None
    values = error if isinstance(error, dict) else {}
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _meaning(reply: ServiceReply) -> Meaning | None:
    """Return the meaning of a refusal's code. None for a good answer or an undocumented code."""
    return meaning_of(_refusal(reply).get("code", "")) if reply.status >= 300 else None


def _offer(found: TypeOffer) -> InstanceOffer:
    about = found.instance_type
    card, memory_gb = card_memory(about.name, printable(about.gpu_description)[:MAX_WORDS])
    return InstanceOffer(
        type=about.name,
        title=printable(about.description)[:MAX_WORDS] or about.name,
        card=card,
        cards=about.specs.gpus,
        memory_gb=memory_gb,
        cents_per_hour=about.price_cents_per_hour,
        regions=tuple(region.name for region in found.regions_with_capacity_available),
        vcpus=about.specs.vcpus,
        ram_gb=about.specs.memory_gib,
        disk_gb=about.specs.storage_gib,
    )


def _instance(listed: ListedInstance) -> Instance:
    about = listed.instance_type
    tagged = next((tag.value for tag in listed.tags if tag.key == NONCE_TAG), "")
    named = nonce_in(listed.name)
    return Instance(
        id=listed.id,
        state=STATES.get(listed.status, InstanceState.UNKNOWN),
        word=printable(listed.status)[:MAX_WORDS],
        nonce=named if named.startswith(tagged) else tagged,  # a tag may be missing, or cut off
        name=printable(listed.name)[:MAX_WORDS],
        ip=listed.ip or None,
        region=listed.region.name if listed.region is not None else "",
        type=about.name if about is not None else "",
        cents_per_hour=about.price_cents_per_hour if about is not None else None,
    )


def _read_or_none(kind: type[A], item: object) -> A | None:
    try:
        return kind.model_validate(_without_nulls(item), strict=True)
    except ValidationError:
        return None


def _without_nulls(item: object) -> object:
    return (
        {key: value for key, value in item.items() if value is not None} if isinstance(item, dict) else item
    )
