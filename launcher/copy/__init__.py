"""This client's copies of runs, and the index that says which host a run is on.

`index` is the only place that names the host to contact; `mirror.Mirror` is the copy of one run, and `record_sync` brings it up to date.
A copy lies in a project's `runs/` folder, and is data: nothing in it is believed.
"""
