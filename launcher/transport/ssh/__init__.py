"""SSH as OpenSSH's configuration has it: route, host keys, login keys, certificates.

`ssh.SshConnection` is the front door: one connection with a channel for each agent.
An unknown host key is refused.
"""
