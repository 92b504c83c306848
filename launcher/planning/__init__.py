"""Pure functions from values to values: the plan, the gate, placement. Nothing here reads a file, a clock or a host.

`assembly.make_plan` and `gate.check` are the front doors.
`precision/`, `software/` and `script/` hold its parts.
"""
