"""Processes under a keeper: what becomes of a run."""
