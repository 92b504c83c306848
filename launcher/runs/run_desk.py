"""From a run to the desk of its host, which must have the root that the run was launched in."""

from __future__ import annotations

from launcher.hosts import Desk, connect
from launcher.runs.mirror import Mirror
from launcher.values.host import Host


def open_desk(host: Host, mirror: Mirror) -> Desk:
    """Connect to the host of a run and return its desk; close it, or use it in a `with`.

    Raises HostError that says what to do, OtherRootError for a host that has another root.
    """
    desk = connect(host)
    try:
        mirror.check_root(host.name, desk.root_id)
    except BaseException:
        desk.close()
        raise
    return desk
