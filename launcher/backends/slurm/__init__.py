"""A Slurm cluster, reached through its login node."""
