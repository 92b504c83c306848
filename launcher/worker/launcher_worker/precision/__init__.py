"""The plan's precision in a script's model and optimizer, and the precision that torch really uses."""
