"""invoke, on which fabric and paramiko build, without what it loads for tests of tasks alone.

That is `unittest.mock`, and with it asyncio and ssl: a third of the time in which fabric loads.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_MOCK = "unittest.mock"
_STAND_IN = ModuleType(_MOCK)
vars(_STAND_IN)["Mock"] = object


def load_invoke() -> None:
    """Load invoke. Whoever imports `unittest.mock` afterwards gets Python's own."""
    if _MOCK in sys.modules:
        return
    sys.modules[_MOCK] = _STAND_IN
    try:
        importlib.import_module("invoke")
    finally:
        del sys.modules[_MOCK]
