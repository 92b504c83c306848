"""`launch verify`: try the precisions of a job on a card for a few steps each, and remember what was proven.

`verifying.verify` is the front door, `verification_report` reads what the trials recorded.
The trials themselves are in the worker.
"""
