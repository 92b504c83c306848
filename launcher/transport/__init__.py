"""The transport of bytes to a host: links, channels to the agent, and the persistent connection.

`connecting.connect` is the entry point: it takes a host and returns the `HostClient` of `client/`, which has
a typed method for each request. Only `ssh/` imports fabric and paramiko; `http/` calls cloud services.
"""

FRONT_DOOR = (
    "agent_file",
    "agent_input",
    "channel",
    "client.host_client",
    "client.run_reading",
    "connecting",
    "http.call_recording",
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
"""The modules that other packages may import."""
