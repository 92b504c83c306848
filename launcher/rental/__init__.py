"""Machines rented by the hour: providers and their accounts, the rental ledger, prices, leases and reconcile.

`provider` defines the provider interface, `records` links each machine to its run, and `reconcile` decides
how each instance ended. The package imports nothing from `runs/`: a lease takes a `RentedRun`.
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
"""The modules that other packages may import."""
