"""The places of places.py, as fixtures."""

from contract.places import (
    kaggle,
    lambda_container,
    lambda_native,
    local,
    slurm_job,
    ssh_docker,
    ssh_native,
    ssh_podman,
    ssh_rootless_podman,
    toy,
    toy_package,
    toy_server,
)

__all__ = [
    "kaggle",
    "lambda_container",
    "lambda_native",
    "local",
    "slurm_job",
    "ssh_docker",
    "ssh_native",
    "ssh_podman",
    "ssh_rootless_podman",
    "toy",
    "toy_package",
    "toy_server",
]
