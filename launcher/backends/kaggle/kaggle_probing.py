"""The cards of a Kaggle account: a session has the requested machine, which cannot be probed before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from launcher.backends.base.probing import CardRequest, HostCards, Probed, Probing, profiles_named
from launcher.backends.kaggle.kaggle_host import settings_of
from launcher.backends.kaggle.kaggle_machines import (
    DATE,
    IMAGE,
    choose_machine,
    expected_facts,
    planned_machine,
)
from launcher.backends.kaggle.kaggle_running import UNTRIED
from launcher.config.lookup import Lookup
from launcher.errors import BadFileError

if TYPE_CHECKING:
    from launcher.transport.client.host_client import HostClient
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.job import Job
    from launcher.values.plan import MachineChoice, Plan


class KaggleProbing(Probing):
    """The probing of an account."""

    is_expected_only = True

    def choose(self, host: Host, asked: CardRequest, lookup: Lookup) -> MachineChoice:
        """Return the machine of an accelerator, from the account's table and the named profiles."""
        return choose_machine(
            host.name,
            settings_of(host),
            asked.profiles,
            lookup.profiles,
            allow_substitute=asked.allows_substitute,
            rehearses=asked.rehearses,
        )

    def probe(
        self, client: HostClient, host: Host, job: Job | None = None, choice: MachineChoice | None = None
    ) -> Facts:
        """Return the expected facts, with the precision evidence of earlier runs from the account's spool."""
        machine, profiles, _ = choice or self._by_table(host, Lookup())
        spool = client.probe(environment=None, packages=[], engine=None, model=None, model_keys=())
        return expected_facts(spool.host_id, machine, profiles[0], spool.precision_evidence)

    def probe_again(self, client: HostClient, host: Host, plan: Plan) -> Facts:
        """Return the facts expected of the plan's machine."""
        return self.probe(client, host, choice=planned_machine(plan))

    def expected(self, host: Host, choice: MachineChoice | None) -> Facts | None:
        """Return the facts expected of the chosen machine; None without a choice."""
        if choice is None:
            return None
        account = settings_of(host).account or "unknown"
        return expected_facts(f"kaggle-{account}", choice.machine, choice.profiles[0])

    def best_cards(self, host: Host, job: Job, facts: Facts, lookup: Lookup) -> HostCards:
        """Return the cards of the machine in the account's table."""
        return HostCards(facts, self._by_table(host, lookup).profiles[0])

    def row(self, host: Host, ask: Callable[[], Facts], lookup: Lookup) -> Probed:
        """Return the row of an account, with its hours. The spool is not needed."""
        from launcher.backends.kaggle.kaggle_service import account_hours  # few launches need hours

        choice = self._by_table(host, lookup)
        user, quota = account_hours(settings_of(host).api)
        facts = expected_facts(f"kaggle-{user}", choice.machine, choice.profiles[0])
        needs_gpu, left = choice.profiles[0].kind == "cuda", quota.gpu_quota
        is_used_up = needs_gpu and left is not None and left.left_s <= 0
        return Probed(host, facts, choice.profiles[0].name, quota=quota.title, is_used_up=is_used_up)

    def is_usable(self) -> bool:
        """Whether credentials for Kaggle exist here. True for an unusable file; its use reports the error."""
        from launcher.backends.kaggle.kaggle_credentials import has_credentials

        try:
            return has_credentials()
        except BadFileError:
            return True

    def note(self) -> str:
        """Return the warning that this backend was never tested against the real service."""
        return UNTRIED

    def quota(self, host: Host) -> str:
        """Return the account's hours."""
        from launcher.backends.kaggle.kaggle_service import quota_or_why

        return quota_or_why(settings_of(host).api)

    def titles(self, facts: Facts) -> tuple[str, str]:
        """Return the words for an account in place of a machine's name, and the id of its spool."""
        return "(a Kaggle account)", f"place {facts.host_id}"

    def rows(self, facts: Facts, quota: str | None) -> Iterator[tuple[str, str]]:
        """Yield the rows of the expected machine, and of the account's hours."""
        yield "expected", f"nothing can be probed before a session: these facts were read until {DATE}"
        yield "cpus", f"{facts.cpus}, {facts.memory_gb} GB"
        yield "root", f"{facts.root}   {facts.room_title}"
        torch = (
            f"torch {IMAGE.torch} (as of {IMAGE.torch_date})" if IMAGE.torch is not None else "torch unknown"
        )
        yield "env", f"Python {IMAGE.pythons[0]} (as of {IMAGE.date}), {torch}"
        for gpu in facts.gpus:
            yield (
                f"gpu {gpu.index}",
                f"{gpu.name}, capability {gpu.capability}, {gpu.memory_mib or 0:,.0f} MiB",
            )
        if not facts.gpus:
            yield "gpu", "none"
        yield "hours", quota or "unknown"
        yield "", UNTRIED

    def _by_table(self, host: Host, lookup: Lookup) -> MachineChoice:
        """Return the machine in an account's table. Raises RefusedError, UnknownNameError."""
        return self.choose(host, CardRequest(profiles_named(host, lookup)), lookup)
