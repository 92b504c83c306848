"""A machine by the hour: providers and their accounts, the ledger of what is rented, price, lease and reconcile.

`provider` says what a provider does, `records` which machine is for which run, `reconcile` what to do about each instance.
It imports nothing of `runs/`: a lease is given a `RentedRun`.
"""
