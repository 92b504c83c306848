"""Lambda Cloud's service: a typed method for each call that we make, and a named reason for each way to fail.

Routes and bodies are those of its OpenAPI description 1.10.0. Nothing has been tried against the real service. Every call
waits for its turn, see rate_limit.py, and one that is refused with 429 has not been acted on, so it is made again, a few times.
No other call is repeated here.

A launch goes in two steps, since an answer may be lost: `launch`, and if that raises UnsettledError, look for it in
`instances`. Whoever launches has to record its intent before, with a mark that the instance carries.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from launcher.errors import ServiceAuthError, ServiceError, ServiceUnreachableError, UnsettledError
from launcher.hosts.service_wire import Failure, Reply, ServiceWire, WireError
from launcher.rental.providers.lambda_api import (
    CodeMeaning,
    FileSystem,
    Firewall,
    Image,
    LambdaInstance,
    Launched,
    NewInstance,
    SshKey,
    TypeOffer,
    meaning_of,
)
from launcher.rental.providers.lambda_api import LambdaReason as Reason
from launcher.rental.providers.lambda_credentials import KEYS_PAGE, VARIABLE, LambdaKey, find_key, key_files
from launcher.rental.rate_limit import MOST_WAIT_S, Pace, Waits, back_off_s, say_nothing
from launcher.values.base import Record
from launcher.values.text import printable

BASE = "https://cloud.lambda.ai/api/v1"
HOST = "lambda"
TRIES = 6
"""How often a call is made that is answered with 429."""
STATUS = {
    401: Reason.UNAUTHORIZED,
    403: Reason.FORBIDDEN,
    404: Reason.NOT_FOUND,
    409: Reason.CONFLICT,
    413: Reason.TOO_LARGE,
    429: Reason.RATE_LIMIT,
}
MENDS = {
    Reason.UNAUTHORIZED: f"make a new key at {KEYS_PAGE}, and set {VARIABLE}",
    Reason.RATE_LIMIT: "another machine or program may be using the same account: wait, then try again",
}
"""For answers without a documented code."""
A = TypeVar("A", bound=Record)


def log_in(variables: Mapping[str, str], home: Path, pace: Pace, base: str = BASE) -> LambdaService:
    """Return the service for this person's key, which is not asked yet. Raises BadFileError or ServiceAuthError."""
    key = find_key(variables, home)
    if key is None:
        files = " or ".join(str(path) for path in key_files(variables, home))
        raise ServiceAuthError(
            HOST,
            Reason.NO_CREDENTIALS,
            f"{HOST}: no API key: {VARIABLE} is not set, and there is no {files}\n"
            f"  make one at {KEYS_PAGE}, then   export {VARIABLE}=…",
        )
    return LambdaService(key, ServiceWire(base), pace, base)


class LambdaService:
    """Lambda Cloud's service for one key."""

    def __init__(
        self,
        key: LambdaKey,
        wire: ServiceWire,
        pace: Pace,
        base: str = BASE,
        draw: random.Random | None = None,
    ) -> None:
        """Use this key over this wire, at this pace."""
        self._key = key
        self._wire = wire
        self._pace = pace
        self._draw = draw or random.Random()  # noqa: S311 — it only spreads calls
        self.fingerprint = key.fingerprint(base)
        self.has_sent_launch = False
        """Whether the last launch may have reached the service: one that was interrupted before its turn has not."""
        self.waits: Waits = say_nothing
        self.hears: Callable[[float], object] = lambda _date: None
        """Called with the `Date` of each answer, in seconds since 1970."""

    # instances

    def instance_types(self) -> list[TypeOffer]:
        """Return the types with their prices, and the regions that have one free. One that cannot be read is left out."""
        what = "listing the instance types"
        data = self._data(self._answer("GET", "instance-types", None, what), what)
        items = list(data.values()) if isinstance(data, dict) else []
        read = [offer for item in items if (offer := _read_or_none(TypeOffer, item)) is not None]
        if not read:
            raise self._malformed(what)
        return read

    def launch(self, instance: NewInstance) -> list[str]:
        """Launch an instance; return its id, of which there may be several against expectation.

        Call it once for an intent, whatever comes back. Raises UnsettledError if it may have been accepted: look for it in
        `instances`. Other errors say that it was not.
        """
        what = f"launching {instance.type} in {instance.region}"
        self.has_sent_launch = False
        try:
            reply = self._call("POST", "instance-operations/launch", instance.body, is_launch=True)
        except WireError as error:
            if error.was_sent:
                raise self._unsettled(what, Reason(error.failure), str(error)) from None
            raise self._lost(what, error) from None
        meaning = self._meaning(reply)
        if (
            reply.status >= 500
            or reply.status == 408
            or (meaning is not None and meaning.reason is Reason.UPSTREAM)
        ):
            reason = Reason.SERVER_ERROR if meaning is None else meaning.reason
            raise self._unsettled(what, reason, f"it answered {reply.status}")
        self._check(reply, what)
        try:
            return self._read(Launched, self._data(reply, what), what).instance_ids
        except ServiceError:
            raise self._unsettled(what, Reason.MALFORMED, "its answer names no instance") from None

    def instances(self) -> list[LambdaInstance]:
        """Return the account's instances. A wrong field is ignored; one without an id makes the whole list an error."""
        return self._list(LambdaInstance, "instances", "listing the instances")

    def instance(self, instance_id: str) -> LambdaInstance:
        """Return an instance. Raises ServiceError with NOT_FOUND if there is none."""
        what = f"the instance {instance_id}"
        return self._one(LambdaInstance, "GET", f"instances/{quote(instance_id, safe='')}", None, what)

    def rename(self, instance_id: str, name: str) -> LambdaInstance:
        """Give an instance another name."""
        what = f"renaming the instance {instance_id}"
        path = f"instances/{quote(instance_id, safe='')}"
        return self._one(LambdaInstance, "POST", path, {"name": name}, what)

    def terminate(self, instance_id: str) -> None:
        """Ask for the end of an instance, which also ends its bill. Look in `instances` until it has gone."""
        what = f"terminating the instance {instance_id}"
        body = {"instance_ids": [instance_id]}
        self._answer("POST", "instance-operations/terminate", body, what)

    # what an instance is made with

    def ssh_keys(self) -> list[SshKey]:
        """Return the public keys that the account holds."""
        return self._list(SshKey, "ssh-keys", "listing the SSH keys")

    def add_key(self, name: str, public_key: str) -> SshKey:
        """Add a public key under a name."""
        body = {"name": name, "public_key": public_key}
        return self._one(SshKey, "POST", "ssh-keys", body, f"adding the SSH key {name}")

    def delete_key(self, key_id: str) -> None:
        """Remove a public key from the account; instances that have it keep it."""
        self._answer("DELETE", f"ssh-keys/{key_id}", None, f"removing the SSH key {key_id}")

    def file_systems(self) -> list[FileSystem]:
        """Return the account's file systems."""
        return self._list(FileSystem, "file-systems", "listing the file systems")

    def images(self) -> list[Image]:
        """Return the images, each in one region."""
        return self._list(Image, "images", "listing the images")

    def firewalls(self) -> list[str]:
        """Return the ids of the account's rulesets."""
        found = self._list(Firewall, "firewall-rulesets", "listing the firewall rulesets")
        return [one.id for one in found]

    def close(self) -> None:
        """Close its connections."""
        self._wire.close()

    def __repr__(self) -> str:
        return f"LambdaService({self._key!r})"

    def _one(self, kind: type[A], method: str, path: str, body: Mapping[str, Any] | None, what: str) -> A:
        return self._read(kind, self._data(self._answer(method, path, body, what), what), what)

    def _list(self, kind: type[A], path: str, what: str) -> list[A]:
        items = self._data(self._answer("GET", path, None, what), what)
        if not isinstance(items, list):
            raise self._malformed(what)
        return [self._read(kind, item, what) for item in items]

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None, what: str) -> Reply:
        """Make a call that may be repeated; return its good answer."""
        try:
            reply = self._call(method, path, body)
        except WireError as error:
            raise self._lost(what, error) from None
        self._check(reply, what)
        return reply

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, is_launch: bool = False
    ) -> Reply:
        """Make a call in its turn, again if it is refused with 429. Raises WireError."""
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
            if (reply.retry_s or 0.0) > MOST_WAIT_S:
                break  # the caller says so, instead of a wait of hours
        return reply

    def _data(self, reply: Reply, what: str) -> Any:
        said = reply.json()
        if not isinstance(said, dict) or "data" not in said:
            raise self._malformed(what)
        return said["data"]

    def _read(self, kind: type[A], item: object, what: str) -> A:
        try:
            return kind.lenient(_without_nulls(item))
        except ValidationError:
            raise self._malformed(what) from None

    def _meaning(self, reply: Reply) -> CodeMeaning | None:
        """Return what the code of a refusal means; None for a good answer and for a code that is not documented."""
        return meaning_of(_said(reply)[0]) if reply.status >= 300 else None

    def _check(self, reply: Reply, what: str) -> None:
        """Raise the error of an answer: by the code in its JSON, else by its status."""
        if reply.status < 300:
            return
        meaning = self._meaning(reply)
        if meaning is None:
            usual = Reason.SERVER_ERROR if reply.status >= 500 else Reason.BAD_REQUEST
            reason = STATUS.get(reply.status, usual)
            meaning = CodeMeaning(reason, MENDS.get(reason, ""))
        message = printable(self._key.redact(" ".join(filter(None, _said(reply)[1:])))[:300])
        words = f"{HOST}: {what}: {reply.status}{f' {message}' if message else ''}"
        mend = f"\n  {meaning.mend}" if meaning.mend else ""
        kind = {
            Reason.UNAUTHORIZED: ServiceAuthError,
            Reason.SERVER_ERROR: ServiceUnreachableError,
            Reason.UPSTREAM: ServiceUnreachableError,
        }.get(meaning.reason, ServiceError)
        raise kind(HOST, meaning.reason, f"{words}{mend}", reply.retry_s)

    def _malformed(self, what: str) -> ServiceError:
        return ServiceError(HOST, Reason.MALFORMED, f"{HOST}: {what}: its answer cannot be read")

    def _lost(self, what: str, error: WireError) -> ServiceError:
        """Return what a call without an answer raises."""
        kind = ServiceError if error.failure is Failure.TOO_LARGE else ServiceUnreachableError
        return kind(HOST, Reason(error.failure), f"{HOST}: {what}: {error}")

    def _unsettled(self, what: str, reason: Reason, words: str) -> UnsettledError:
        return UnsettledError(HOST, reason, f"{HOST}: {what}: {words}; it may have been accepted")


def _said(reply: Reply) -> tuple[str, str, str]:
    """Return the code, message and suggestion of a refusal; empty where there are none."""
    said = reply.json()
    error = said.get("error") if isinstance(said, dict) else None
    values = error if isinstance(error, dict) else {}
    code, message, suggestion = (values.get(key) for key in ("code", "message", "suggestion"))
    return tuple(value if isinstance(value, str) else "" for value in (code, message, suggestion))  # type: ignore[return-value]


def _read_or_none(kind: type[A], item: object) -> A | None:
    try:
        return kind.model_validate(_without_nulls(item), strict=True)
    except ValidationError:
        return None


def _without_nulls(item: object) -> object:
    return (
        {key: value for key, value in item.items() if value is not None} if isinstance(item, dict) else item
    )
