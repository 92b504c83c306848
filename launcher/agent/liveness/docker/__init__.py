"""The liveness of a run in a container of a host's engine."""
