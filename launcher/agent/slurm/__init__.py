"""What runs inside a job of Slurm's: the script's process, and what it starts on each node."""
