"""The client of a host's agent: a typed method for each request, and reading runs by cursor.

`desk.HostClient` is the interface, `agent_desk.AgentClient` its implementation for an agent. Services without
a connection have another implementation, in `backends/spool`.
"""
