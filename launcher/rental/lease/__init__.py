"""The lease of a rented machine: rent, watch, hand over, extend, and end.

`rental_lease.Lease` is the front door; `release` is the one way in which a rental ends.
The keeper in the background and a command in front hold a rental by the same lock.
"""
