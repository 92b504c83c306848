"""Runs on rented machines: choose, agree on a price, rent, and bring everything home before the machine goes.

`acquire` is the front door: for a machine of the user's own it changes nothing.
The rental itself is in `rental/`.
"""
