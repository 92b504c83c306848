"""The upload to a host: the files of a code folder, the excluded files with their reasons, and the digests.

`loading.load` is the entry point: it walks the folder before any host is contacted. `upload_record` and
`excluded_files` store with a run what was sent for it.
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
"""The modules that other packages may import."""
