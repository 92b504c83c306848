"""Runs as containers of a host's own engine. Only `engine.py` imports docker-py, which takes 0.15 s."""

from launcher.backends.machine.docker.docker_runtime import Docker

RUNTIME = Docker
