"""The places of places.py, as fixtures."""

from contract.places import local, ssh_docker, ssh_native

__all__ = ["local", "ssh_docker", "ssh_native"]
