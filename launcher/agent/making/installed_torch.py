"""Read the torch version of an environment from torch's own file `version.py`.

An import of torch takes seconds.
"""

from __future__ import annotations

import ast
import glob
import os
from typing import Optional

from ..record.packages_report import PackagesReport
from ..record.safe_open import UnreadableError, read_regular

MAX_BYTES = 1 << 16


def installed_torch(path: str) -> Optional[PackagesReport]:
    """Return the report of torch_check.py for an environment. `architectures` is None: no text file lists them.

    Returns None if the file is missing, or lacks the version of torch or CUDA.
    """
    found = glob.glob(
        os.path.join(glob.escape(path), "lib", "python*", "site-packages", "torch", "version.py")
    )
    if len(found) != 1:
        return None
    values = _constants(found[0])
    torch, cuda = values.get("__version__"), values.get("cuda", False)
    if not isinstance(torch, str) or not (cuda is None or isinstance(cuda, str)):
        return None
    python = found[0][len(path) :].split(os.sep)[2][len("python") :]
    return {"python": python, "torch": torch, "cuda": cuda, "error": None, "architectures": None}


def _constants(path: str) -> dict[str, object]:
    """Return the constants that a module's text assigns to names."""
    try:
        statements = ast.parse(read_regular(path, MAX_BYTES)).body
    except (SyntaxError, ValueError, UnreadableError):
        return {}
    values: dict[str, object] = {}
    for one in statements:
        targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
        value = getattr(one, "value", None)
        if isinstance(value, ast.Constant):
            values.update((target.id, value.value) for target in targets if isinstance(target, ast.Name))
    return values
