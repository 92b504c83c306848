"""A client for services that only run a script and keep its log, without a connection into a running session.

The spool is a local folder that holds such a run and grows from its log. `spooled_client` is the front door:
the host client for a spool. `segments` pushes, watches, downloads and deletes the sessions of a run.
"""
