"""From a log and an exit status to a failure class, and from a class to a remedy. Pure functions."""
