"""How bytes reach a host: links, channels to the agent, and the connection that is kept for the next command.

`connecting.connect` is the front door: from a host to the `HostClient` in `client/`, which has a typed method for each request.
Only `ssh/` imports fabric and paramiko; `http/` calls cloud services.
"""

FRONT_DOOR = (
    "agent_file",
    "agent_input",
    "channel",
    "client.agent_desk",
    "client.desk",
    "client.run_reading",
    "connecting",
    "http.service_wire",
    "local",
    "log_diagnosis",
    "persistent_connection",
    "shared_connection",
    "ssh.new_keys",
    "ssh.ssh",
    "ssh.ssh_config",
    "ssh.ssh_files",
    "ssh.ssh_keys",
)
"""The modules that other rooms may import."""
