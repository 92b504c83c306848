"""The client of a host's agent: a typed method for each request, and the reading of runs by cursor.

`desk.HostClient` is the interface, `agent_desk.AgentClient` the one in front of an agent.
A service without a wire has a desk of its own, in `backends/spool`.
"""
