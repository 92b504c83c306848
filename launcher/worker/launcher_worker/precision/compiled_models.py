"""`compile = true` of a job: models compiled by torch, and the tools that the compilation needs on the host.

A compiled model shares the parameters of the original model, under names that begin with `_orig_mod.`. So a
script keeps the original model and saves that one.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from typing import Any, Iterator

from ..values import Knobs, knobs


def compiled(model: Any) -> Any:
    """Return a model that compiles at its first call if the plan asks for it; else the model itself.

    Raises SystemExit if the host lacks the tools that torch.compile needs.
    """
    if not compiles(knobs()):
        return model
    import torch

    return torch.compile(model)


def compiles(values: Knobs) -> bool:
    """Return whether models are compiled; never in a rehearsal, because a card's kernels need the card.

    Raises SystemExit if the host lacks the tools that torch.compile needs.
    """
    if not values.peek.precision.compile or values.rehearsed:
        return False
    missing = missing_compiler(values.peek.precision.device)
    if missing:
        raise SystemExit(
            f"compile = true needs {missing} on the host: install it, or launch with --set compile=false"
        )
    return True


def missing_compiler(device: str) -> str:
    """Return the tools that torch.compile needs and this host lacks, in words; empty if the host has them all."""
    return " and ".join(_missing(device))


def _missing(device: str) -> Iterator[str]:
    """Yield each missing tool.

    For a CPU, Inductor compiles C++; for a card, Triton compiles C. Both need Python.h.
    """
    if device == "cuda":
        compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    else:
        compilers = [os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")]
    if not any(map(shutil.which, compilers)):
        yield f"a compiler ({' or '.join(compilers)})"
    folders = {
        sysconfig.get_path("include"),
        sysconfig.get_path("include", "posix_prefix"),
    }  # where torch looks
    has_headers = any(os.path.exists(os.path.join(folder, "Python.h")) for folder in folders)
    if not has_headers and sys.platform != "darwin":  # macOS frameworks keep the headers elsewhere
        yield "Python's headers (Python.h, in the package python3-dev of Debian and Ubuntu)"
