"""The report of `making/torch_check.py` about a Python installation."""

from __future__ import annotations

from typing import List, Optional, TypedDict


class PackagesReport(TypedDict, total=False):
    """The versions of Python, torch and that build's CUDA, its GPU architectures, and pip's conflicts.

    `error` is set if torch cannot be imported. `architectures` is None if torch does not list them,
    `conflicts` is None without pip.
    """

    python: str
    torch: Optional[str]
    cuda: Optional[str]
    error: Optional[str]
    architectures: Optional[List[str]]
    conflicts: Optional[List[str]]
