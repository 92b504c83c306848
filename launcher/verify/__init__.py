"""`launch verify`: try each precision of a job on a card for a few steps, and remember the proven ones.

`verifying.verify` is the front door; `verification_report` reads the recorded trials. The trials themselves
run in the worker.
"""
