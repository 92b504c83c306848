"""The configuration table of a machine."""

from launcher.values.host_kind import HostKind

KIND = HostKind()
