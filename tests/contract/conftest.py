"""The places of places.py, as fixtures."""

from contract.places import local, ssh_docker, ssh_native, toy, toy_package

__all__ = ["local", "ssh_docker", "ssh_native", "toy", "toy_package"]
