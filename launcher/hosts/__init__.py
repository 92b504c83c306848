"""Where: one module a place. Only here fabric and paramiko; everything else uses a `Desk`.

Each name loads its module when it is first used: a command that begins to connect needs few of them at first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.hosts.connecting import connect as connect
    from launcher.hosts.connecting import open_line as open_line
    from launcher.hosts.desk import Desk as Desk
    from launcher.hosts.line import Line as Line

_MODULES = {"Desk": "desk", "Line": "line", "connect": "connecting", "open_line": "connecting"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
