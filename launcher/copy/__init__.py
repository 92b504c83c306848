"""Local copies of runs, and the index that records the host of each run.

`index` is the only place that names the host to contact. `local_copy.LocalCopy` is the local copy of one run, and
`record_sync` brings it up to date. A local copy lies in a project's `runs/` folder, and is untrusted data.
"""
