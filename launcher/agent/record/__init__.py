"""The format of the run directory: paths, locks, strict JSON, secrets, and a host's precision evidence."""
