"""Containers of a host's engine: the liveness of a run in one."""
