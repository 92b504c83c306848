"""Counts the bytes of all tensors that are alive, and their peak, in whatever torch does on a CPU.

A card's allocator counts the same storages, in blocks. What a kernel allocates inside itself is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """While it is entered, `now` is the size of all storages made or noted since, and `peak` the largest `now`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and count what it returns."""
        result = func(*args, **(kwargs or {}))
        self.note(result)
        return result

    def note(self, tree: Any) -> None:
        """Count the storages of all tensors in a value; one that is counted already is not counted again."""
        for tensor in tree_leaves(tree):
            if hasattr(
                tensor, "__tensor_flatten__"
            ):  # torchao's moments: their own storage is none, their parts have some
                self.note([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])
            elif isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes:
            return
        self._sizes[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
