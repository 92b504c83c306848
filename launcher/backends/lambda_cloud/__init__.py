"""A Lambda Cloud account, which rents machines."""
