"""The verb batch, and what it shows."""
