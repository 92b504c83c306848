"""Files, locks, JSON and text on this computer: small helpers for every room, independent of launcher's subject.

`client_files` opens files without following links, `untrusted_json` reads JSON from others, and `whole_file`
replaces a file atomically. It imports nothing of the other rooms.
"""
