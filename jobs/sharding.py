"""A model divided among the cards (FSDP2), for a full fine-tune that fits no single one.

transformers divides the model as it loads, and Trainer trains it so. What Trainer lacks is here: a checkpoint of the
optimizer, from which a training resumes. In a checkpoint the model is whole, as transformers alone loads it; the
optimizer lies in the folder `optimizer`, each rank's share in a file, which any number of ranks can read.
"""

import contextlib
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.distributed.checkpoint import load_optimizer_distributed, save_optimizer_distributed
from trl import SFTTrainer

OPTIMIZER, SCHEDULER = "optimizer", "scheduler.pt"


def loading(ranks: int) -> dict[str, object]:
    """Return the keyword of `from_pretrained` that divides a model among so many ranks."""
    return {"distributed_config": DistributedConfig(fsdp_size=ranks)}


class ShardedTrainer(SFTTrainer):
    """TRL's trainer, whose model may be divided: then it saves and loads the optimizer in shares."""

    model: PreTrainedModel

    @property
    def is_sharded(self) -> bool:
        """Whether the model is divided among the ranks."""
        return bool(self.is_distributed_loading_by_transformers)

    def reshard(self) -> None:
        """Leave each rank only its share, after passes without a backward pass: the head and the last norm are still whole."""
        for module in self.model.modules():
            if hasattr(module, "reshard"):
                module.reshard()

    def _defer_fsdp_gradient_reduction(self) -> contextlib.AbstractContextManager[None]:
        """Reduce after each micro-batch: between them, Trainer would keep the gradients of the whole model on each card."""
        return contextlib.nullcontext()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.is_sharded:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_optimizer_distributed(self.model, self.optimizer.optimizer, str(Path(output_dir, OPTIMIZER)))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self.is_sharded:  # a divided model was loaded from the checkpoint
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        shares = Path(checkpoint or "", OPTIMIZER)
        if checkpoint is None or not (self.is_sharded or shares.is_dir()):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        if not shares.is_dir():
            raise SystemExit(
                f"{checkpoint}: saved by a model that was not divided, whose optimizer cannot be divided now"
            )
        load_optimizer_distributed(self.model, self.optimizer.optimizer, str(shares))
        self.lr_scheduler.load_state_dict(
            torch.load(Path(checkpoint, SCHEDULER), map_location="cpu", weights_only=True)
        )
