"""Make images and environments on this host."""
