"""The views of a followed run: live in a terminal, plain lines in a pipe, JSON lines for scripts.

`screens` chooses the view, `follow` follows a run with it, `ending` has the lines for the run's end.
"""
