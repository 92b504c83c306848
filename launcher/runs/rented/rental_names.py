"""Check the names in a host's table that only its account knows: region, image, file system, SSH key, firewall.

A wrong name is found before any rental. If the account does not answer at present, the check is left to the
launch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from launcher.config.lookup import Lookup
from launcher.errors import ServiceError
from launcher.rental.lease.renter import open_account
from launcher.rental.renting import InstanceOffer
from launcher.transport.ssh.ssh_config import hops
from launcher.transport.ssh.ssh_keys import may_offer
from launcher.values.parsing import nearest
from launcher.values.plan import Finding

if TYPE_CHECKING:
    from launcher.rental.provider import Placed, Provider
    from launcher.rental.rental_settings import RentalSettings
    from launcher.values.host import Host

ANY_ADDRESS = "192.0.2.1"
"""A placeholder for a machine's address, which is unknown before its rental. RFC 5737 reserves it for documentation."""


def name_findings(host: Host, settings: RentalSettings, offered: Iterable[InstanceOffer]) -> list[Finding]:
    """Return the findings about the names in a host's table.

    Only names in the table are looked up in the account. Raises BadFileError and ServiceAuthError.
    """
    free = {region for offer in offered for region in offer.regions}
    odd_regions = [name for name in settings.region if name not in free]
    if host.identity_file and not settings.key:
        words = "without key in the table, the machine accepts only a key that launcher makes, not this one"
        mend = 'in the same table   key = "…", its name in the account     or no identity_file     nothing was rented'
        return [_refusal(host, "identity_file", host.identity_file, "no-private-key", words, mend)]
    if not (odd_regions or settings.image or settings.file_system or settings.key or settings.firewall):
        return []
    with contextlib.closing(open_account(settings)) as account:
        return [*_findings(host, settings, free, account.provider)]


def _findings(host: Host, settings: RentalSettings, free: set[str], service: Provider) -> Iterator[Finding]:
    odd_regions = [name for name in settings.region if name not in free]
    with contextlib.suppress(ServiceError):
        images = service.images() if odd_regions or settings.image else ()
        regions = free | {image.region for image in images if image.region is not None}
        for name in odd_regions:
            yield from _unknown(host, "region", name, regions)
        yield from _unknown(host, "image", settings.image, {image.name for image in images if image.name})
    placed = (
        ("file_system", settings.file_system, service.file_systems),
        ("firewall", settings.firewall, service.firewalls),
    )
    for noun, wanted, listed in placed:
        with contextlib.suppress(ServiceError):
            if wanted is not None:
                yield from _placed(host, noun, wanted, listed(), settings)
    with contextlib.suppress(ServiceError):
        if (key := settings.key) is not None:
            keys = {one.name: one.public_key for one in service.ssh_keys()}
            yield from _unknown(host, "key", key, keys)
            if key in keys and not _may_log_in(host, settings.usual_user, keys[key]):
                looked = host.identity_file or "a usual file of ~/.ssh"
                words = f"its private half is neither in ssh-agent nor in {looked}: no user of this computer could log in"
                mend = 'in the same table   identity_file = "…"     or no key: launcher makes one     nothing was rented'
                yield _refusal(host, "key", key, "no-private-key", words, mend)


def _placed(
    host: Host, noun: str, name: str, listed: Iterable[Placed], settings: RentalSettings
) -> Iterator[Finding]:
    """Yield a refusal of something that the account does not have, or that is not in the table's only region."""
    places = {one.name: one.region for one in listed}
    yield from _unknown(host, noun, name, places)
    if (region := places.get(name)) is not None and {*settings.region} != {region}:
        words = f"it is in {region}, and no machine elsewhere can use it"
        mend = f'in the same table   region = "{region}"     nothing was rented'
        yield _refusal(host, noun, name, "wrong-region", words, mend)


def _may_log_in(host: Host, usual_user: str, public_key: str) -> bool:
    machine = host.model_copy(update={"address": ANY_ADDRESS, "user": host.user or usual_user})
    *_, last = hops(machine)
    return may_offer(last, public_key)


def _unknown(host: Host, key: str, name: str | None, known: Iterable[str]) -> Iterator[Finding]:
    """Yield a refusal of a name, if given, that the account does not have."""
    names, noun = sorted({*known}), key.replace("_", " ")
    if name is None or name in names:
        return
    has = f"its own are {', '.join(names)}" if names else f"it has no {noun} at all"
    words = f"unknown {noun}, as the account says{nearest(name, names)}"
    yield _refusal(host, key, name, "unknown-name", words, f"{has}; nothing was rented")


def _refusal(host: Host, key: str, name: str, code: str, words: str, mend: str) -> Finding:
    message = f'{Lookup().file_of(host.name)}: hosts.{host.name}.{key} = "{name}": {words}'
    return Finding(level="refuse", code=code, message=message, mend=mend)
