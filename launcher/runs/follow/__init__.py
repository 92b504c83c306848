"""Follow a run until it ends, and say how it ended.

`following.follow` is the front door; a lost link is opened again for as long as it takes.
A `view.View` shows it: a terminal, a pipe or nothing.
"""
