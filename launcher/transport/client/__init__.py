"""The client of a host's agent: a typed method for each request, and reading runs by cursor.

`host_client.HostClient` is the interface, `agent_client.AgentClient` its implementation for an agent.
Services without a connection have another implementation, in `backends/spool`.
"""
