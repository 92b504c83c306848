"""Frozen values: what people write, what we derive, what we record. One module a value."""
