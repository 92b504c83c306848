"""The configuration table of a machine."""

from launcher.values.host import HostKind

KIND = HostKind()
