"""What happens to runs: launch, follow, pull, resume, move, stop and clean up.

Each folder has its front door, named in its first lines; `locating` finds the run that a word means, `run_desk` connects to its host.
The rooms below are used, and nothing of `cli/`.
"""
