"""This computer, and machines over SSH."""
