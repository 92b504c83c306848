"""Runs as containers of a host's own engine. Only here docker-py."""
