"""Lambda Cloud as a provider of machines by the hour. Nothing has been tried against the real service."""

from __future__ import annotations

from launcher.errors import ServiceError
from launcher.planning.offers import card_memory
from launcher.rental.providers.lambda_api import LambdaInstance, NewInstance, TypeOffer
from launcher.rental.providers.lambda_api import LambdaReason as Reason
from launcher.rental.providers.lambda_service import HOST, LambdaService
from launcher.values.renting import TAGS, Instance, InstanceState, Intent, Offer, Setup, nonce_in
from launcher.values.text import printable

STATES = {
    "booting": InstanceState.BOOTING,
    "active": InstanceState.ACTIVE,
    "unhealthy": InstanceState.UNHEALTHY,
    "terminating": InstanceState.ENDING,
    "terminated": InstanceState.GONE,
    "preempted": InstanceState.PREEMPTED,
}
"""Ours for each status that is documented. Any other is UNKNOWN: still billed, and never ready."""
NONCE_TAG = TAGS[1]
MOST_WORDS = 100
"""So many characters of the service's own words are shown."""


class LambdaProvider:
    """One account at Lambda Cloud."""

    name = HOST

    def __init__(self, service: LambdaService) -> None:
        """Ask this service."""
        self._service = service
        self.account = f"{HOST}-{service.fingerprint}"

    @property
    def has_sent_launch(self) -> bool:
        """Whether the last launch may have reached the service."""
        return self._service.has_sent_launch

    def offers(self) -> tuple[Offer, ...]:
        """Return all types, with their prices and the regions that have one free."""
        return tuple(_offer(found) for found in self._service.instance_types())

    def launch(self, intent: Intent, setup: Setup) -> tuple[str, ...]:
        """Launch an instance that carries the intent's nonce in its name and a tag."""
        instance = NewInstance(
            region=intent.region,
            type=intent.type,
            ssh_key=setup.ssh_key,
            name=intent.name,
            image=setup.image,
            file_systems=setup.file_systems,
            firewalls=setup.firewalls,
            user_data=setup.user_data,
            tags=intent.tags,
        )
        return tuple(self._service.launch(instance))

    def instances(self) -> tuple[Instance, ...]:
        """Return every instance of the account."""
        return tuple(_instance(listed) for listed in self._service.instances())

    def instance(self, instance_id: str) -> Instance | None:
        """Return one instance of the account; None if there is none."""
        try:
            return _instance(self._service.instance(instance_id))
        except ServiceError as error:
            if error.reason != Reason.NOT_FOUND:
                raise
            return None

    def terminate(self, instance_id: str) -> None:
        """Ask for the end of an instance; one that does not exist is no error."""
        try:
            self._service.terminate(instance_id)
        except ServiceError as error:
            if error.reason != Reason.NOT_FOUND:
                raise


def _offer(found: TypeOffer) -> Offer:
    about = found.instance_type
    card, memory_gb = card_memory(about.name, printable(about.gpu_description)[:MOST_WORDS])
    return Offer(
        type=about.name,
        title=printable(about.description)[:MOST_WORDS] or about.name,
        card=card,
        cards=about.specs.gpus,
        memory_gb=memory_gb,
        cents_per_hour=about.price_cents_per_hour,
        regions=tuple(region.name for region in found.regions_with_capacity_available),
        vcpus=about.specs.vcpus,
        ram_gb=about.specs.memory_gib,
        disk_gb=about.specs.storage_gib,
    )


def _instance(listed: LambdaInstance) -> Instance:
    about = listed.instance_type
    return Instance(
        id=listed.id,
        state=STATES.get(listed.status, InstanceState.UNKNOWN),
        word=printable(listed.status)[:MOST_WORDS],
        nonce=_nonce(listed),
        name=printable(listed.name)[:MOST_WORDS],
        ip=listed.ip or None,
        region=listed.region.name if listed.region is not None else "",
        type=about.name if about is not None else "",
        cents_per_hour=about.price_cents_per_hour if about is not None else None,
    )


def _nonce(listed: LambdaInstance) -> str:
    """Return the mark of a launch: its tag's, or its name's if there is no tag, or one that was cut off."""
    tagged, named = listed.tag(NONCE_TAG), nonce_in(listed.name)
    return named if named.startswith(tagged) else tagged
