"""Choose a machine to rent for a job, and estimate the run time from the last run. Nothing is rented here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from launcher.backends.kinds import PACKAGES, host_kind
from launcher.backends.registry import backend_of
from launcher.config.lookup import Lookup
from launcher.copy.local_copy import LocalCopy, local_copies
from launcher.errors import RefusedError, UsageError
from launcher.planning.placement import requested_gpus
from launcher.rental.lease.renter import open_account
from launcher.rental.offers import OfferFilter
from launcher.rental.price import Expected, RentalChoice, priced
from launcher.rental.rental_settings import PROPOSED_HOURS, RentalSettings
from launcher.rental.renting import InstanceOffer
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.profile import Profile
from launcher.values.states import State

SETUP_HOURS = 0.25
"""Hours added to the time of a run: to boot, set up the machine and download the files."""


def settings_of(host: Host) -> RentalSettings:
    """Return a host's rental settings. Raises UsageError for a kind of host that rents nothing."""
    settings = backend_of(host).running.rental(host)
    if settings is None:
        raise UsageError(
            f'{host.name}: it rents no machines: its table has no kind = "lambda-cloud"\n'
            "  what Lambda Cloud offers   launch offers"
        )
    return settings


def check_limited(host: Host) -> None:
    """Raise RefusedError for a host's table without max_hours and max_cost, before any request is sent."""
    settings = settings_of(host)
    if settings.max_hours is None and settings.max_cents is None:
        raise RefusedError(
            f"{host.name}: a rented machine costs money until it is ended, so max_hours or max_cost is needed\n"
            f"  in {Lookup().file_of(host.name)}   [hosts.{host.name}]   max_hours = {PROPOSED_HOURS}     prices   launch offers"
        )


def offers(host: Host) -> tuple[InstanceOffer, ...]:
    """Return the machines that a host's account can rent now. Makes one call, which costs nothing.

    Raises BadFileError, ServiceAuthError without a key, or ServiceError.
    """
    with contextlib.closing(open_account(settings_of(host))) as account:
        return account.provider.offers()


def offering_host(name: str | None) -> Host:
    """Return the renting host of this name, else the project's default, else the first one.

    If no host rents machines, return the account of a provider whose offers can be listed without a table.
    Raises UsageError if the named host rents nothing.
    """
    accounts = {one.name: one for kind in PACKAGES if (one := host_kind(kind).offering) is not None}
    if name is not None and name not in accounts:
        host = Lookup().host(name)
        settings_of(host)
        return host
    lookup = Lookup()
    known = lookup.hosts
    first = [known[one] for one in (name, lookup.project.host) if one in known]
    for host in [*first, *known.values()]:
        if backend_of(host).running.rental(host) is not None:
            return host
    return accounts[name] if name is not None else next(iter(accounts.values()))


def choose(
    host: Host, profiles: Sequence[Profile], gpus: str | None, job: Job, offered: Iterable[InstanceOffer]
) -> RentalChoice:
    """Return the offers that fit a job's named profiles, the host's table and `--gpus`.

    Raises UnknownNameError, UsageError or RefusedError.
    """
    check_limited(host)
    settings = settings_of(host)
    known = tuple(Lookup().profiles.values())
    wish = OfferFilter(profiles, known, settings.type, _number_of(gpus, host))
    return priced(
        host.name,
        settings,
        offered,
        wish,
        lambda profile: earlier_run(job.name, profile) or _by_its_limit(job),
    )


def earlier_run(job: str, profile: Profile) -> Expected | None:
    """Return the duration of this client's last successful run of a job on a card, plus setup time.

    Return None without one.
    """
    for local_copy in reversed(local_copies()):
        if (seconds := _seconds(local_copy, job, profile)) is not None:
            return Expected(
                seconds / 3600 + SETUP_HOURS,
                f"as long as run {local_copy.short}, and {SETUP_HOURS * 60:.0f} min for boot and downloads",
            )
    return None


def _seconds(local_copy: LocalCopy, job: str, profile: Profile) -> float | None:
    plan = local_copy.record.plan()
    if (plan.job, plan.card) != (job, profile.title) or plan.rehearsed:
        return None
    state, began = local_copy.state(), local_copy.record.began()
    if state is None or state.state != State.SUCCEEDED or state.time is None or began is None:
        return None
    return max(0.0, state.time - began)


def _by_its_limit(job: Job) -> Expected | None:
    limit = job.time_limit_minutes
    return (
        None if limit is None else Expected(limit / 60 + SETUP_HOURS, f"by its time limit of {limit:g} min")
    )


def _number_of(gpus: str | None, host: Host) -> int | None:
    """Return the number of cards that `--gpus` asks for.

    Raises UsageError for ids, because a card has none before its machine is rented.
    """
    if gpus is None:
        return None
    count, ids = requested_gpus(gpus, 1)
    if ids:
        raise UsageError(
            f"--gpus {gpus}: {host.name} rents its cards, which have no ids before the rental\n  how many   --gpus {count}"
        )
    return count


def expected(host: Host, choice: RentalChoice) -> Facts:
    """Return the facts expected of the planned machine."""
    return backend_of(host).probing.expected_offer(host, choice.first.offer, choice.first.profile)
