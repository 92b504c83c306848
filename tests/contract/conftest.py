"""The places of places.py, as fixtures."""

from contract.places import kaggle, local, ssh_docker, ssh_native, toy, toy_package

__all__ = ["kaggle", "local", "ssh_docker", "ssh_native", "toy", "toy_package"]
