"""Continue a script's Trainer from the checkpoint that an earlier Trainer of the script saved, without the worker."""

from __future__ import annotations

import functools
import os
from typing import Any

from .channel import rank, send
from .shield import SOURCE, shielded
from .values import knobs


@shielded
def resume_trainer(module: Any) -> None:
    """Make the first Trainer that saves into the checkpoint's folder load it; `module` is transformers.trainer.

    A script that names a checkpoint itself, or `False`, is left alone. A second Trainer, as of the next fold, is not
    given the checkpoint again. The agent is told, so that it can tell a run that began anew.
    """
    path = knobs().own_checkpoint
    if path is None:
        return
    train, is_given = module.Trainer.train, False

    @functools.wraps(train)
    def resumed(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_given
        with shielded:
            if not is_given and os.path.isdir(path):
                shown, is_named = os.path.relpath(path), resume_from_checkpoint is not None
                is_its = os.path.realpath(self.args.output_dir) == os.path.dirname(os.path.realpath(path))
                is_given = is_named or is_its
                if is_given:
                    send("evidence", values={"own_resume": shown}, source=SOURCE)
                words = f"not resumed: this Trainer saves into {self.args.output_dir!r}, and {shown!r} is elsewhere"
                if is_its and not is_named:
                    resume_from_checkpoint = path
                    words = f"resumed: Trainer.train: resume_from_checkpoint={shown!r}"
                if rank() == 0 and not is_named:
                    print(words, flush=True)
        return train(self, resume_from_checkpoint, *args, **kwargs)

    module.Trainer.train = resumed
