"""What a Python says of its packages without any card: asked in an image, or an environment, before a run uses it.

It is a program of its own: the agent runs it with an environment's interpreter, and an image is handed its text.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any, Dict

MARK = "launch-check "
PIP_S = 120
MOST_LINES = 20


def main() -> int:
    """Print one line: MARK, and a JSON object with python, torch, cuda, architectures, conflicts, and error; return 0."""
    told: Dict[str, Any] = {
        "python": "%d.%d" % sys.version_info[:2],
        "torch": None,
        "cuda": None,
        "error": None,
    }
    told["architectures"] = []
    try:
        torch = importlib.import_module(
            "torch"
        )  # the one thing that is asked about, and no part of the agent
        told["torch"], told["cuda"] = str(torch.__version__), torch.version.cuda
        flags = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001 # public nowhere; without CUDA there is none
        told["architectures"] = (flags() or "").split() if flags is not None else []
    except Exception as error:  # noqa: BLE001 # a torch that breaks on import may raise anything
        told["error"] = "%s: %s" % (type(error).__name__, error)
    told["conflicts"] = _conflicts()
    print(MARK + json.dumps(told))
    return 0


def _conflicts() -> Any:
    """Return what `pip check` has to say, line by line; None where there is no pip to ask."""
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=PIP_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if b"No module named pip" in done.stderr:
        return None
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return lines[:MOST_LINES] if done.returncode else []


if __name__ == "__main__":
    sys.exit(main())
