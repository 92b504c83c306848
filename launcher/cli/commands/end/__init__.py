"""Verbs that end and clean up: stop, rm, gc, sweep."""
