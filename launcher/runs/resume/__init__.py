"""Resume makes a new run from a checkpoint; recover continues an interrupted one.

`resuming.resume` and `recovering.recover` are the front doors.
`resumed_plan` says which keys of the plan may change.
"""
