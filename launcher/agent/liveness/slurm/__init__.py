"""Jobs of Slurm: its programs' answers, the submission of jobs, and the liveness of a run."""
