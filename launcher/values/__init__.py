"""Frozen values: user input, derived values and records. One module for each value.

`Plan`, `Job`, `Host`, `Profile`, `Precision`, `Facts` and the records are used by every package. No module
here reads a file or contacts a host.
"""
