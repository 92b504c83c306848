"""Follow a run until it ends, and report its end.

`following.follow` is the front door; it reopens a lost link without a limit. A `view.View` shows the run: on
a terminal, to a pipe or not at all.
"""
