"""The lease of a rented machine: rent, watch, hand over, extend, and terminate.

`rental_lease.Lease` is the main class; all rentals end through `release`. The background keeper and a
foreground command hold a rental by the same lock.
"""
