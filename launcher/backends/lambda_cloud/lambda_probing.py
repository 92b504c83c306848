"""The cards of a machine that could be rented at Lambda Cloud, from the account's current offers."""

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
    """The probing of an account."""

    is_expected_only = True

    def __init__(self) -> None:
        """Send no request yet."""
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
        """Return the facts expected of a machine that could be rented."""
        return expected_facts(host, offer, profile)

    def ask_ahead(self, hosts: Sequence[Host]) -> None:
        """Request the offers of each account of some hosts: once per account."""
        accounts = {settings_of(host).api: host for host in hosts}
        self._offered = {api: Future() for api in accounts}
        for api, host in accounts.items():
            threading.Thread(target=_answer_offers, args=(host, self._offered[api]), daemon=True).start()

    def row(self, host: Host, ask: Callable[[], Facts], lookup: Lookup) -> Probed:
        """Return the row of an account: the facts of the machine that it would rent.

        `ask_ahead` has requested the offers.
        """
        offered = self._offered[settings_of(host).api].result()
        choice = choose(host, profiles_named(host, lookup), None, NO_JOB, offered)
        return Probed(host, expected(host, choice), choice.first.profile.name, quota=choice.offer_words)

    def cells(self, host: Host, facts: Facts) -> CardCells:
        """Return the expected cards and memory. The driver is unknown until a machine is rented."""
        return super().cells(host, facts)._replace(driver="-")

    def note(self) -> str | None:
        """Return the warning that this backend is untested, until this client has rented."""
        return LambdaRunning().first_note()


def _answer_offers(host: Host, answer: Future[tuple[InstanceOffer, ...]]) -> None:
    try:
        answer.set_result(offers(host))
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the result
        answer.set_exception(error)
