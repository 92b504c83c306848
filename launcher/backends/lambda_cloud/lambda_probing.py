"""The cards of a machine that would be rented at Lambda Cloud, by what the account is offered just now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from launcher.backends.base.probing import NO_JOB, CardCells, CardRequest, Probed, Probing, profiles_named
from launcher.backends.base.rental_choice import choose, expected, offers, settings_of
from launcher.backends.lambda_cloud.lambda_machines import expected_facts
from launcher.backends.lambda_cloud.lambda_running import LambdaRunning
from launcher.errors import UsageError
from launcher.rental.renting import InstanceOffer

if TYPE_CHECKING:
    from launcher.config.lookup import Lookup
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.profile import Profile


class LambdaProbing(Probing):
    """An account's answers."""

    is_expected_only = True

    def __init__(self) -> None:
        """Ask for nothing yet."""
        self._offered: dict[str, Future[tuple[InstanceOffer, ...]]] = {}

    def choose(self, host: Host, asked: CardRequest, lookup: Lookup) -> None:
        """Raise UsageError for a rehearsal, and for --allow-substitute."""
        if asked.rehearses:
            raise UsageError(
                "--rehearse needs no card, and nothing is rented for it\n"
                f"  on this machine   launch --host local --rehearse --profile {asked.name}"
            )
        super().choose(host, asked, lookup)

    def expected_offer(self, host: Host, offer: InstanceOffer, profile: Profile) -> Facts:
        """Return what is expected of a machine that could be rented."""
        return expected_facts(host, offer, profile)

    def ask_ahead(self, hosts: Sequence[Host]) -> None:
        """Ask each account of some hosts for its offers: once, however many hosts are of it."""
        accounts = {settings_of(host).api: host for host in hosts}
        self._offered = {api: Future() for api in accounts}
        for api, host in accounts.items():
            threading.Thread(target=_answer_offers, args=(host, self._offered[api]), daemon=True).start()

    def row(self, host: Host, ask: Callable[[], Facts], lookup: Lookup) -> Probed:
        """Return what is expected of what would be rented of an account's offers, which were asked for."""
        del ask
        offered = self._offered[settings_of(host).api].result()
        choice = choose(host, profiles_named(host, lookup), None, NO_JOB, offered)
        return Probed(host, expected(host, choice), choice.first.profile.name, quota=choice.offer_words)

    def cells(self, host: Host, facts: Facts) -> CardCells:
        """Return what is expected; the driver is known once a machine is rented."""
        return super().cells(host, facts)._replace(driver="-")

    def note(self) -> str | None:
        """Return that nothing was tried there, until this client has rented."""
        return LambdaRunning().first_note()


def _answer_offers(host: Host, answer: Future[tuple[InstanceOffer, ...]]) -> None:
    try:
        answer.set_result(offers(host))
    except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
        answer.set_exception(error)
