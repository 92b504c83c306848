"""Beside the training: the agent that makes attempts, its parents, and the variables a process gets."""
