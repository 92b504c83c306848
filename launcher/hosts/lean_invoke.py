"""invoke, on which fabric and paramiko build, without what it loads for things that nobody here does.

For tests of tasks it loads `unittest.mock`, and with it asyncio and ssl; for settings files in YAML its own parser.
That is half of the time in which fabric loads.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_MOCK = "unittest.mock"
_YAML = "invoke.vendor.yaml"


class _Yaml(ModuleType):
    """invoke's parser of YAML, loaded when it is first used: by a user who has a ~/.fabric.yaml."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(_YAML) is self:
            del sys.modules[_YAML]
        return getattr(importlib.import_module(_YAML), name)


def load_invoke() -> None:
    """Load invoke. Whoever imports `unittest.mock` afterwards gets Python's own."""
    if _MOCK in sys.modules or "invoke" in sys.modules:
        return
    stand_in = ModuleType(_MOCK)
    vars(stand_in)["Mock"] = object
    sys.modules[_MOCK] = stand_in
    sys.modules[_YAML] = _Yaml(_YAML)
    try:
        importlib.import_module("invoke")
    finally:
        del sys.modules[_MOCK]
