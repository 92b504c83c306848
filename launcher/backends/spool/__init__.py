"""For services without a wire, which run a script to its end and keep its log: a run's folder on this computer, fed from the log.

`spooled_desk` is the front door: the desk of such a place.
`segments` pushes, watches, brings home and deletes the sessions of a run.
"""
