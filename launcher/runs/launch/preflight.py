"""A launch's connected host, and the last checks before the run starts.

The gate checks the plan against the host's facts, and the plan's cards are chosen from these facts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from launcher.backends.registry import backend_of
from launcher.config import resolve
from launcher.errors import RefusedError
from launcher.runs.follow.view import View
from launcher.runs.launch import cards
from launcher.transport.client.host_client import HostClient
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.plan import Finding, Plan

LOOK_AGAIN_S = 30.0
"""The maximum age of facts about cards, in seconds, before the host is probed again."""


class ConnectedHost(NamedTuple):
    """A connected host, its facts, and the job to run on it.

    `gpus` is the value of `--gpus`. `deadline` is the end of waiting for cards, by the monotonic clock.
    `is_rented`: the machine was rented for this launch. `batch` is the batch that the run belongs to.
    """

    host: Host
    client: HostClient
    job: Job
    facts: Facts
    view: View
    gpus: str | None = None
    deadline: float = 0.0
    is_rented: bool = False
    batch: str | None = None

    def probed_again(self) -> ConnectedHost:
        """Return the connected host with new facts."""
        return self._replace(facts=backend_of(self.host).probing.probe(self.client, self.host, self.job))


def pass_gate(contact: ConnectedHost, plan: Plan) -> None:
    """Check a plan, and the cards of `--gpus`, against the host's facts; show the notes.

    Raises RefusedError with the refusals, or CardBusyError if busy cards are the only obstacle.
    """
    check, host = backend_of(contact.host).planning.check, contact.host
    findings = [
        *cards.findings(contact.gpus, plan, host, contact.facts),
        *check(plan, contact.facts, host, resolve.wheels(), resolve.cards()),
    ]
    if contact.is_rented:
        findings = [_of_rented(finding, contact.host) for finding in findings]
    refusals = [finding for finding in findings if finding.level == "refuse"]
    if busy := cards.refusal(refusals, plan, contact.facts):
        raise busy
    settle(findings, contact.view)


def _of_rented(finding: Finding, host: Host) -> Finding:
    """Return a finding; if it is a card mismatch, replace its advice with one that fits a rental.

    The usual advice is to name the card that was found. It does not help: each launch rents a new machine.
    """
    if finding.code != "card-mismatch":
        return finding
    mend = f'name another type or card   launch offers --host {host.name}     in its table   type = "…"'
    return finding.model_copy(
        update={"message": f"{finding.message}, which its offer promised", "mend": mend}
    )


def settle(findings: Iterable[Finding], view: View) -> None:
    """Show the notes among findings. Raise RefusedError with all refusals, if any."""
    found = list(findings)
    for finding in found:
        if finding.level == "note":
            view.finding(finding)
    if error := refusal(found):
        raise error


def refusal(findings: Iterable[Finding]) -> RefusedError | None:
    """Return an error with all refusals among findings; None without any."""
    lines = [
        f"{finding.message}\n  {finding.mend}" if finding.mend else finding.message
        for finding in findings
        if finding.level == "refuse"
    ]
    return RefusedError(cards.REFUSED + "\n".join(lines)) if lines else None


def pass_gate_when_free(contact: ConnectedHost, plan: Plan) -> ConnectedHost:
    """Pass the gate; while the cards are held, probe again until the deadline.

    Return the connected host with the facts that passed. Raises RefusedError.
    """
    first = [contact]

    def look() -> ConnectedHost:
        current = first.pop() if first else contact.probed_again()
        pass_gate(current, plan)
        return current

    return cards.waiting_for(look, contact.deadline - time.monotonic(), contact.view)


def look_at_cards(contact: ConnectedHost, plan: Plan) -> Callable[[], cards.CardChoice]:
    """Return a function that chooses cards for a plan, and probes the host again once the facts are old.

    While all cards are held, it returns the last choice.
    """
    looked_at, choice = time.monotonic(), cards.card_choice(contact.gpus, plan, contact.facts)

    def look() -> cards.CardChoice:
        nonlocal looked_at, choice
        if choice.gpus and time.monotonic() - looked_at > LOOK_AGAIN_S:
            latest = cards.card_choice(contact.gpus, plan, contact.probed_again().facts)
            looked_at = time.monotonic()
            choice = latest if len(latest.gpus) >= latest.needed > 0 else choice
        return choice

    return look
