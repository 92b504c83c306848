"""The command batch, and its output."""
