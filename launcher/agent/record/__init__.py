"""The run directory as a format: its paths, its locks, strict JSON, secrets, what a host knows of precisions."""
