"""Launch a run from a command line: resolve, probe, plan, pass the gate, send, start.

`launching.launch` is the front door, `dry_run.preview` that of `--dry-run`. Each stage is shown with its
time.
"""
