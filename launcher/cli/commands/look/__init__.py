"""Commands that show runs: ps, attach, logs, metrics, plot, compare, diagnose, explain."""
