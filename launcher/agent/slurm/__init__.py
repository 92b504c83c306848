"""The programs inside a Slurm job: the job script's process, and the processes that it starts on each node."""
