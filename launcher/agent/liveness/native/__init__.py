"""Processes under a keeper: the liveness of a run."""
