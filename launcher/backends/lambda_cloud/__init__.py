"""An account at Lambda Cloud, where machines are rented."""
