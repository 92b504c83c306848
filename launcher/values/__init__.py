"""Frozen values: what people write, what we derive, what we record. One module for each value.

`Plan`, `Job`, `Host`, `Profile`, `Precision`, `Facts` and the records are used in every room.
Nothing here reads a file or asks a host.
"""
