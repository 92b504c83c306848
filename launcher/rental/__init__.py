"""A machine by the hour: providers and their accounts, the ledger of what is rented, price, lease and reconcile.

`provider` says what a provider does, `records` which machine is for which run, `reconcile` what to do about each instance.
It imports nothing of `runs/`: a lease is given a `RentedRun`.
"""

FRONT_DOOR = (
    "lease.extend",
    "lease.handoff",
    "lease.instance_keys",
    "lease.instance_login",
    "lease.release",
    "lease.rental_keeper",
    "lease.rental_lease",
    "lease.renter",
    "ledger",
    "offers",
    "open_rentals",
    "price",
    "provider",
    "providers.lambda_settings",
    "reconcile",
    "records",
    "rental_settings",
    "renting",
    "service_clock",
    "settle_account",
    "verdict",
)
"""The modules that other rooms may import."""
