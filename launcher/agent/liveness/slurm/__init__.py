"""Jobs of Slurm: what its programs say, what is submitted, and what becomes of a run."""
