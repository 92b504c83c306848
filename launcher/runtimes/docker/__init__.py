"""Runs as containers of a host's own engine. Only `engine.py` imports docker-py, which takes 0.15 s."""

import sys

from launcher.runtimes.docker.runtime import Docker

# docker-py's own way over SSH, which has it load paramiko: 60 ms where a connection is held. It does without.
sys.modules.setdefault("docker.transport.sshconn", None)  # type: ignore[arg-type]

RUNTIME = Docker
