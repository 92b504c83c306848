"""A Slurm cluster, by its login node."""
