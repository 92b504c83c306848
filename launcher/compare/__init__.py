"""The differences between runs: their plans, code, precision and curves.

The entry point of `launch compare` is `comparing.compare`; for its option `--code` it is `code_diff`. All data
comes from the local copies of the runs, except the code that was sent.
"""
