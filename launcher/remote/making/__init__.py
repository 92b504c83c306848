"""Images and environments, made on this host for a plan."""
