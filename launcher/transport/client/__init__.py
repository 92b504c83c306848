"""The client of a host's agent: a typed method for each request, and reading runs by cursor.

`host_client.HostClient` is the client. Services without a connection have a subclass of it, in `backends/spool`.
"""
