"""Commands that end runs and clean up: stop, rm, gc, sweep."""
