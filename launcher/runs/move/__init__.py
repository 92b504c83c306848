"""Move a run to another host, with or without the old one.

`moving.move` is the front door, `abandoning` serves an old host that does not answer.
The old host learns by `pending_stops` that its run has gone.
"""
