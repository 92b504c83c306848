"""Bring home what a run wrote: outputs, artifacts and checkpoints, each proven by its digest.

`pulling.pull` is the front door, `copying` that of `launch cp`, `file_listing` that of `launch ls`.
A transfer that was cut off goes on where it stopped.
"""
