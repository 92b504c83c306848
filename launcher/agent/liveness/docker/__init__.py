"""Containers of a host's engine: what becomes of a run in one."""
