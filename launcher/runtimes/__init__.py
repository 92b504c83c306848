"""How a job runs on a host: natively for now."""
