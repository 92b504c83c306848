"""User input: launch.toml, jobs, profiles, secrets, a command's script, and the trust in a project's files.

`lookup.Lookup` finds hosts and profiles by the names of a command line, `resolve.task` makes the job. A mistake
is a UsageError with file, key, value and the correct input.
"""
