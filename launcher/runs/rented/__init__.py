"""Runs on rented machines: choose, agree on a price, rent, and download everything before the machine is terminated.

`acquire` is the front door; for a machine that the user owns, it rents nothing. The code of the rental itself
is in `rental/`.
"""
