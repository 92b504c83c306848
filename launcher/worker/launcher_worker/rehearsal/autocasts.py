"""Autocast and distributed training on an imitated card: autocast runs on the CPU, gloo replaces NCCL.

The CPU's autocast covers fewer operations than CUDA's, but the same matrix products. These decide whether
numbers stay in range.
"""

from __future__ import annotations

import functools
from typing import Any, Callable


def install(torch: Any) -> None:
    """Let autocast and distributed training for `cuda` work on the CPU."""
    _wrap_autocast(torch)
    _wrap_questions(torch)
    if torch.distributed.is_available():
        _wrap_distributed(torch)


def _wrap_autocast(torch: Any) -> None:
    autocast = torch.amp.autocast_mode.autocast
    original = autocast.__init__

    @functools.wraps(original)
    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", torch.float16 if dtype is None else dtype
        original(self, device_type, dtype, *args, **kwargs)

    autocast.__init__ = init


def _wrap_questions(torch: Any) -> None:
    """Answer queries about CUDA's autocast with the state of the CPU's autocast, which replaces it."""

    def of_cpu(name: str) -> None:
        function = getattr(torch, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def asked(*args: Any) -> Any:
            first = args[:1] if args and isinstance(args[0], str) else ("cuda",)
            rest = args[1:] if args and isinstance(args[0], str) else args
            return function("cpu" if first == ("cuda",) else first[0], *rest)

        setattr(torch, name, asked)

    for name in ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype"):
        of_cpu(name)
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")
    torch.set_autocast_gpu_dtype = lambda dtype: torch.set_autocast_dtype("cpu", dtype)


def _wrap_distributed(torch: Any) -> None:
    distributed = torch.distributed
    init = distributed.init_process_group

    @functools.wraps(init)
    def joined(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        is_nccl = backend is None or "nccl" in str(backend).lower()
        return init("gloo" if is_nccl else backend, *args, **kwargs)

    distributed.init_process_group = distributed.distributed_c10d.init_process_group = joined
    parallel = torch.nn.parallel
    _without_devices(parallel.DistributedDataParallel)
    data_parallel = parallel.DataParallel.__init__

    @functools.wraps(data_parallel)
    def alone(self: Any, module: Any, *_args: Any, **_kwargs: Any) -> None:
        torch.nn.Module.__init__(self)
        self.module, self.device_ids = module, []

    parallel.DataParallel.__init__ = alone


def _without_devices(kind: Any) -> None:
    original: Callable[..., None] = kind.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, *_args: Any, **kwargs: Any) -> None:
        kwargs.update(device_ids=None, output_device=None)
        original(self, module, **kwargs)

    kind.__init__ = init
