"""Making of images and environments on this host."""
