"""The views of a run that is followed: live in a terminal, plain lines in a pipe, JSON lines for scripts.

`screens` chooses the view, `follow` follows with it, `ending` says how the run ended.
"""
