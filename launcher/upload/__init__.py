"""What travels to a host: the files of a code folder, what is left out of it and why, and their digests.

`loading.load` is the front door: it walks the folder before any host is asked.
`upload_record` and `excluded_files` keep with a run what was sent for it.
"""

FRONT_DOOR = (
    "digests",
    "excluded_files",
    "excluded_text",
    "frozen_code",
    "git_rules",
    "loading",
    "named_paths",
    "tree",
    "upload_history",
    "upload_record",
)
"""The modules that other rooms may import."""
