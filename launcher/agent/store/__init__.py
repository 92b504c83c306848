"""Files that runs share or keep: shipped trees, checkpoints, artifacts, and what a resumed run inherits."""
