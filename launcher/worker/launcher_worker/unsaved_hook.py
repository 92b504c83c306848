"""A hook on a model that is not saved with it, so that a saved model loads without launcher."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Tuple


class UnsavedHook:
    """Calls a function. Pickled or copied, it becomes a standard-library call that does nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        _hide_from_compiler()
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    def __reduce__(self) -> Tuple[Any, ...]:
        """Become `nullcontext().__exit__`, which takes any arguments and returns None."""
        return getattr, (contextlib.nullcontext(), "__exit__")


@functools.lru_cache(maxsize=None)
def _hide_from_compiler() -> None:
    """Make torch.compile skip these hooks: it would trace the objects that they read."""
    import torch

    UnsavedHook.__call__ = torch.compiler.disable(UnsavedHook.__call__)  # type: ignore[method-assign]
