"""What differs between runs: their plans, code, precision and curves.

`comparing.compare` is the front door of `launch compare`, `code_diff` that of its `--code`.
Everything but the code that was sent comes from the copies of the runs.
"""
