"""Check the names in a host's table that only its account knows: a region, an image, a file system, an SSH key, a firewall.

A wrong one is found before anything is rented. What the account does not tell just now is left for the launch to refuse.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from launcher.errors import ServiceError
from launcher.hosts.ssh_config import hops
from launcher.hosts.ssh_keys import may_offer
from launcher.rental.provider import Placed, Provider, SshKey
from launcher.rental.renter import open_account
from launcher.runs.resolve import file_of
from launcher.values.lambda_settings import USER
from launcher.values.parsing import nearest
from launcher.values.plan import Finding
from launcher.values.renting import Offer

if TYPE_CHECKING:
    from launcher.values.host import Host
    from launcher.values.lambda_settings import LambdaSettings

ANY_ADDRESS = "192.0.2.1"
"""Stands for a machine's address, which nobody knows before it is rented; it is in a range for documents."""


def name_findings(host: Host, settings: LambdaSettings, offered: Iterable[Offer]) -> list[Finding]:
    """Return what is wrong with the names in a host's table. The account is asked only for what the table names.

    Raises BadFileError and ServiceAuthError.
    """
    free = {region for offer in offered for region in offer.regions}
    odd_regions = [name for name in settings.region if name not in free]
    if host.identity_file and not settings.key:
        return [_key_of_nobody(host, host.identity_file)]
    if not (odd_regions or settings.image or settings.file_system or settings.key or settings.firewall):
        return []
    with contextlib.closing(open_account(settings)) as account:
        return [*_findings(host, settings, free, account.provider)]


def _findings(host: Host, settings: LambdaSettings, free: set[str], service: Provider) -> Iterator[Finding]:
    odd_regions = [name for name in settings.region if name not in free]
    with contextlib.suppress(ServiceError):
        images = service.images() if odd_regions or settings.image else ()
        regions = free | {image.region for image in images if image.region is not None}
        yield from (_unknown(host, "region", name, regions) for name in odd_regions if name not in regions)
        families = {image.name for image in images if image.name}
        if settings.image is not None and settings.image not in families:
            yield _unknown(host, "image", settings.image, families)
    with contextlib.suppress(ServiceError):
        if settings.file_system is not None:
            yield from _of_file_system(host, settings, settings.file_system, service.file_systems())
    with contextlib.suppress(ServiceError):
        if settings.key is not None:
            yield from _of_key(host, settings.key, service.ssh_keys())
    with contextlib.suppress(ServiceError):
        if settings.firewall is not None and settings.firewall not in (ids := {*service.firewalls()}):
            yield _unknown(host, "firewall", settings.firewall, ids)


def _of_file_system(
    host: Host, settings: LambdaSettings, name: str, known: Iterable[Placed]
) -> Iterator[Finding]:
    found = {one.name: one for one in known}
    if name not in found:
        yield _unknown(host, "file_system", name, found)
        return
    region = found[name].region
    if region is not None and {*settings.region} != {region}:
        message = (
            f"{_where(host, 'file_system', name)}: it is in {region}, and no machine elsewhere can mount it"
        )
        yield Finding(
            level="refuse",
            code="wrong-region",
            message=message,
            mend=f'in the same table   region = "{region}"     nothing was rented',
        )


def _of_key(host: Host, name: str, known: Iterable[SshKey]) -> Iterator[Finding]:
    """Yield what is wrong with the key of the account that a table names: nobody here could log in with it."""
    found = {one.name: one.public_key for one in known}
    if name not in found:
        yield _unknown(host, "key", name, found)
        return
    machine = host.model_copy(update={"address": ANY_ADDRESS, "user": host.user or USER})
    *_, last = hops(machine)
    if not may_offer(last, found[name]):
        looked = host.identity_file or "a usual file of ~/.ssh"
        yield Finding(
            level="refuse",
            code="no-private-key",
            message=f"{_where(host, 'key', name)}: its private half is neither in ssh-agent nor in {looked}: nobody here could log in",
            mend='in the same table   identity_file = "…"     or no key: launcher makes one     nothing was rented',
        )


def _key_of_nobody(host: Host, file: str) -> Finding:
    return Finding(
        level="refuse",
        code="no-private-key",
        message=f"{_where(host, 'identity_file', file)}: without key the machine has a key that launcher makes, and refuses this one",
        mend='in the same table   key = "…", its name in the account     or no identity_file     nothing was rented',
    )


def _unknown(host: Host, key: str, name: str, known: Iterable[str]) -> Finding:
    names = sorted({*known})
    noun = key.replace("_", " ")
    has = f"its own are {', '.join(names)}" if names else f"it has no {noun} at all"
    return Finding(
        level="refuse",
        code="unknown-name",
        message=f"{_where(host, key, name)}: unknown {noun}, as the account says{nearest(name, names)}",
        mend=f"{has}; nothing was rented",
    )


def _where(host: Host, key: str, name: str) -> str:
    return f'{file_of(host.name)}: hosts.{host.name}.{key} = "{name}"'
