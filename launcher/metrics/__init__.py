"""The values that trainings report: curves, tables, pictures and TensorBoard's files.

`curves` reads them from a run's events, `metric_points` reads millions of them, `picture` draws them. All
data comes from the local copy of a run; no host is contacted.
"""

FRONT_DOOR = (
    "ancestry",
    "csv_cell",
    "curves",
    "drawing_process",
    "host_figures",
    "log_parts",
    "metric_results",
    "panels",
    "picture",
    "tensorboard",
)
"""The modules that other packages may import."""
