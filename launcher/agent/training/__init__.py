"""Processes beside the training: the agent that makes attempts, its parents, and their variables."""
