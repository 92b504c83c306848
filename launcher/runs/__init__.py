"""Operations on runs: launch, follow, pull, resume, move, stop and clean up.

Each folder names its front door in its first lines. `locating` finds a run by the user's word for it;
`run_client` connects to its host. This package imports only from packages below it, and nothing from `cli/`.
"""
