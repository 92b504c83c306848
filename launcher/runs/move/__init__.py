"""Move a run to another host, whether or not the old host answers.

`moving.move` is the front door. `abandoning` moves a run whose old host does not answer, and `pending_stops`
informs that host later.
"""
