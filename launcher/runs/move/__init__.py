"""Move a run to another host, with or without the old one.

`moving.move` is the front door. `abandoning` moves a run whose old host does not answer, and `pending_stops`
informs that host later.
"""
