"""The cards of an account of Kaggle's: a session has the machine that is asked for, and nothing can be probed before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from launcher.backends.base.probing import CardRequest, CardsThere, Probed, Probing, profiles_named
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

if TYPE_CHECKING:
    from launcher.transport.client.desk import HostClient
    from launcher.values.facts import Facts
    from launcher.values.host import Host
    from launcher.values.job import Job
    from launcher.values.machine_choice import MachineChoice
    from launcher.values.plan import Plan


class KaggleProbing(Probing):
    """An account's answers."""

    is_expected_only = True

    def choose(self, host: Host, asked: CardRequest, lookup: Lookup) -> MachineChoice:
        """Return the machine of an accelerator, by the account's table and the named profiles."""
        return choose_machine(
            host.name,
            settings_of(host),
            asked.profiles,
            lookup.profiles,
            allow_substitute=asked.allows_substitute,
            rehearses=asked.rehearses,
        )

    def probe(
        self, desk: HostClient, host: Host, job: Job | None = None, choice: MachineChoice | None = None
    ) -> Facts:
        """Return what is expected, with the evidence of earlier runs, which is with the account's spool."""
        del job
        machine, profiles, _ = choice or self._by_table(host, Lookup())
        spool = desk.probe(environment=None, packages=[], engine=None, model=None, model_keys=())
        return expected_facts(spool.host_id, machine, profiles[0], spool.precision_evidence)

    def probe_again(self, desk: HostClient, host: Host, plan: Plan) -> Facts:
        """Return what is expected of the plan's machine."""
        return self.probe(desk, host, choice=planned_machine(plan))

    def expected(self, host: Host, choice: MachineChoice | None) -> Facts | None:
        """Return what is expected of the chosen machine; None without a choice."""
        if choice is None:
            return None
        account = settings_of(host).account or "unknown"
        return expected_facts(f"kaggle-{account}", choice.machine, choice.profiles[0])

    def best_cards(self, host: Host, job: Job, facts: Facts, lookup: Lookup) -> CardsThere:
        """Return the cards of the machine that the account's table asks for."""
        del job
        return CardsThere(facts, self._by_table(host, lookup).profiles[0])

    def row(self, host: Host, ask: Callable[[], Facts], lookup: Lookup) -> Probed:
        """Ask for an account's hours; its spool is not needed for that."""
        del ask
        from launcher.backends.kaggle.kaggle_service import account_hours  # most launches ask for no hours

        choice = self._by_table(host, lookup)
        user, quota = account_hours(settings_of(host).api)
        facts = expected_facts(f"kaggle-{user}", choice.machine, choice.profiles[0])
        return Probed(host, facts, choice.profiles[0].name, quota=quota.title)

    def is_usable(self) -> bool:
        """Whether there are credentials for Kaggle here."""
        from launcher.backends.kaggle.kaggle_credentials import has_credentials

        return has_credentials()

    def note(self) -> str:
        """Return that nothing was tried there."""
        return UNTRIED

    def quota(self, host: Host) -> str:
        """Return the account's hours."""
        from launcher.backends.kaggle.kaggle_service import quota_or_why

        return quota_or_why(settings_of(host).api)

    def titles(self, facts: Facts) -> tuple[str, str]:
        """Return that it is an account, and the id of its spool."""
        return "(an account of Kaggle's)", f"place {facts.host_id}"

    def rows(self, facts: Facts, quota: str | None) -> Iterator[tuple[str, str]]:
        """Yield what is expected of a machine of Kaggle's, and its account's hours."""
        yield "expected", f"nothing can be probed before a session: this is what was read until {DATE}"
        yield "cpus", f"{facts.cpus}, {facts.memory_gb} GB"
        yield "root", f"{facts.root}   {facts.room_title}"
        torch = (
            f"torch {IMAGE.torch} (as of {IMAGE.torch_date})" if IMAGE.torch is not None else "torch unknown"
        )
        yield "env", f"Python {IMAGE.python} (as of {IMAGE.date}), {torch}"
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
        """Return the machine that an account's table asks for. Raises RefusedError, UnknownNameError."""
        return self.choose(host, CardRequest(profiles_named(host, lookup)), lookup)
