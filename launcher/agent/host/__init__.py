"""This host as a whole: its facts, leftovers of dead runs, and what no run needs any more."""
