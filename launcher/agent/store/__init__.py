"""Files that runs share or keep: uploaded trees, checkpoints, artifacts, and what a resumed run inherits."""
