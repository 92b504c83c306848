"""Download a run's files: outputs, artifacts and checkpoints, each verified by its digest.

`pulling.pull` is the front door, `copying` that of `launch cp`, `file_listing` that of `launch ls`. An
interrupted transfer continues where it stopped.
"""
