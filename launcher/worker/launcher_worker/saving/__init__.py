"""Checkpoints: save, seal, remove and find them."""
