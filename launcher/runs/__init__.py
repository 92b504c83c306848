"""Operations on runs: launch, follow, pull, resume, move, stop and clean up.

Each folder names its front door in its first lines. `locating` finds the run that a word means; `run_desk`
connects to its host. This room uses the rooms below it, and nothing of `cli/`.
"""
