"""Base classes of the backends: `Backend` for a kind of host, and `Runtime` for the way a job runs there.

The defaults are those of a machine with a login. Runtimes share `inside` and `making`.
"""
