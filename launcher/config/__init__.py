"""What people write: launch.toml, jobs, profiles, secrets, the script of a command, and what is trusted of a project's files.

`resolve` is the front door: it turns the names of a command line into hosts, profiles and jobs.
A mistake is a UsageError with file, key, value and what to type instead.
"""
