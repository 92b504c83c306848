"""Report the packages of a Python, without using a card, to check an image or an environment before a run.

This is a separate program: the agent runs it with an environment's interpreter, and passes its text to an
image.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the program runs on any Python, without other modules of the launcher
    from ..record.packages_report import PackagesReport


MARK = "launch-check "
WITHOUT_CONFLICTS = "--without-conflicts"
PIP_S = 120
MAX_LINES = 20


def main() -> int:
    """Print MARK and a JSON object with python, torch, cuda, architectures, conflicts, and error; return 0."""
    report: PackagesReport = {
        "python": "%d.%d" % sys.version_info[:2],
        "torch": None,
        "cuda": None,
        "error": None,
    }
    report["architectures"] = []
    try:
        torch = importlib.import_module("torch")  # not imported at the top: the agent has no torch
        report["torch"], report["cuda"] = str(torch.__version__), torch.version.cuda
        flags = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001 # not public; missing without CUDA
        report["architectures"] = (flags() or "").split() if flags is not None else []
    except Exception as error:  # noqa: BLE001 # a broken torch may raise anything on import
        report["error"] = "%s: %s" % (type(error).__name__, error)
    report["conflicts"] = None if WITHOUT_CONFLICTS in sys.argv else _conflicts()
    print(MARK + json.dumps(report))
    return 0


def _conflicts() -> Any:
    """Return the lines of `pip check`, None without pip."""
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
    return lines[:MAX_LINES] if done.returncode else []


if __name__ == "__main__":
    sys.exit(main())
