"""User input: launch.toml, jobs, profiles, secrets, a command's script, and the trust in a project's files.

`resolve` is the front door: it turns the names of a command line into hosts, profiles and jobs. A mistake is
a UsageError with file, key, value and the correct input.
"""
