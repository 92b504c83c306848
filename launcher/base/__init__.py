"""Files, locks, JSON and text on this computer: small parts that every room may use, and that know nothing of launcher's subject.

`client_files` has the folders of this user's data, `untrusted_json` reads what others wrote, `whole_file` writes a file whole.
It imports nothing of the other rooms.
"""
