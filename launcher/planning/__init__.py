"""Pure functions from values to values: the plan, the gate, placement. They read no file, clock or host.

The entry points are `assembly.plan` and `gate.check`. `precision/`, `software/` and `script/` hold their
parts.
"""
