"""What `making/torch_check.py` reports of a Python."""

from __future__ import annotations

from typing import List, Optional, TypedDict


class PackagesReport(TypedDict, total=False):
    """The version of a Python and of its torch, the CUDA and the architectures that was built for, and what `pip check` says.

    A torch that cannot be imported has an `error`. `architectures` are None if nobody lists them, `conflicts` without pip.
    """

    python: str
    torch: Optional[str]
    cuda: Optional[str]
    error: Optional[str]
    architectures: Optional[List[str]]
    conflicts: Optional[List[str]]
