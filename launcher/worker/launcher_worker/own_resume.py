"""Continue a script's Trainer from the checkpoint that its parent run's Trainer saved itself, without the worker."""

from __future__ import annotations

import functools
import os
from typing import Any

from .channel import rank
from .shield import shielded
from .values import knobs


@shielded
def resume_trainer(module: Any) -> None:
    """Make the Trainer that saves into the checkpoint's folder load it; `module` is transformers.trainer.

    A checkpoint that the script names itself is left alone.
    """
    path = knobs().own_checkpoint
    if path is None:
        return
    train = module.Trainer.train

    @functools.wraps(train)
    def resumed(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        with shielded:
            is_its = os.path.realpath(self.args.output_dir) == os.path.dirname(os.path.realpath(path))
            if is_its and not resume_from_checkpoint:
                resume_from_checkpoint = path
                if rank() == 0:
                    print(
                        f"resumed: Trainer.train: resume_from_checkpoint={os.path.relpath(path)!r}",
                        flush=True,
                    )
        return train(self, resume_from_checkpoint, *args, **kwargs)

    module.Trainer.train = resumed
