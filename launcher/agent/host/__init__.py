"""This host as a whole: its facts, leftovers of dead runs, and garbage that no run needs."""
