"""A host's reports as values: answers of its agent, outputs, checkpoints, engines, clusters."""
