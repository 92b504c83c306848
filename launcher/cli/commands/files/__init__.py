"""Commands for a run's files: ls, pull, cp."""
