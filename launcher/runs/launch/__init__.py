"""From a command line to a started run: resolve, probe, plan, pass the gate, ship, start.

`launching.launch` is the front door, `dry_run.preview` that of `--dry-run`.
Each stage is shown with its time.
"""
