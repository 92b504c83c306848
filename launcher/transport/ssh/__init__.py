"""SSH according to OpenSSH's configuration: route, host keys, login keys, certificates.

`ssh.SshConnection` is the main class: one connection with a channel for each agent. An unknown host key is
refused.
"""
