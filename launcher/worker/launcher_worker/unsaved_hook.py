"""A hook on a model that is not saved with it, so that the file of a model loads where launcher is not."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Tuple


class UnsavedHook:
    """Calls a function; pickled or copied it becomes a call that does nothing, of Python's own library."""

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
    """Have torch.compile leave these hooks alone: it would trace what they look at."""
    import torch

    UnsavedHook.__call__ = torch.compiler.disable(UnsavedHook.__call__)  # type: ignore[method-assign]
