"""`compile = true` of a job: models that torch compiles, and what that needs on the host.

A compiled model has the parameters of the model that it was made of, under names that begin with `_orig_mod.`. So a
script keeps that model, and saves it.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from typing import Any, Iterator

from .values import Knobs, knobs


def compiled(model: Any) -> Any:
    """Return a model that is compiled at its first call, if the plan says so; else the model itself.

    Raises SystemExit if the host lacks what torch compiles with.
    """
    if not compiles(knobs()):
        return model
    import torch

    return torch.compile(model)


def compiles(values: Knobs) -> bool:
    """Return whether models are compiled; in a rehearsal none is, because a card's kernels need the card.

    Raises SystemExit if the host lacks what torch compiles with.
    """
    if not values.peek.precision.compile or values.rehearsed:
        return False
    missing = missing_compiler(values.peek.precision.device)
    if missing:
        raise SystemExit(
            f"compile = true needs {missing} on the host: install it there, or launch with --set compile=false"
        )
    return True


def missing_compiler(device: str) -> str:
    """Return what torch.compile lacks on this host, in words; empty if nothing."""
    return " and ".join(_missing(device))


def _missing(device: str) -> Iterator[str]:
    """Yield what is missing: Inductor builds its code for a CPU in C++, Triton its link to a card in C, for this Python."""
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
    if not has_headers and sys.platform != "darwin":  # there a framework has them elsewhere
        yield "Python's headers (Python.h, in the package python3-dev of Debian and Ubuntu)"
