"""How bytes reach a host: links, channels to the agent, and the connection that is kept for the next command.

`connecting.connect` is the front door: from a host to the `Desk` in `client/`, which has a typed method for each request.
Only `ssh/` imports fabric and paramiko; `http/` calls cloud services.
"""
