"""What the scripts of the field reports share: a small model, its data, and CUDA's path of a Trainer on a CPU."""

import json
import os

import torch
from transformers import Trainer

LENGTH = 24
ROWS = 64


def rows() -> list[dict[str, list[int]]]:
    """Sequences that count upwards, each from a number of its own: easy to learn, and the same everywhere."""
    starts = torch.randint(2, 40, (ROWS,), generator=torch.Generator().manual_seed(0)).tolist()
    found = []
    for start in starts:
        ids = [2 + (start + i) % 60 for i in range(LENGTH)]
        found.append({"input_ids": ids, "labels": ids, "attention_mask": [1] * LENGTH})
    return found


def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Rows of one length, as tensors."""
    return {name: torch.tensor([row[name] for row in batch]) for name in batch[0]}


def batches(size: int, steps: int):
    """That many batches, one row behind the other."""
    every = rows()
    for step in range(steps):
        yield collate([every[(step * size + i) % len(every)] for i in range(size)])


class CudaPath(Trainer):
    """A Trainer that scales fp16 gradients as on a card: on a CPU accelerate would silently leave that out."""

    def create_accelerator_and_postprocess(self) -> None:
        """Switch on what a card switches on."""
        super().create_accelerator_and_postprocess()
        if self.args.fp16:
            self.accelerator.native_amp = True
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)


def tell(losses: list[float], skipped: int = 0) -> None:
    """Write the losses where a witness reads them that is none of ours."""
    if path := os.environ.get("LEDGER"):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"losses": [repr(loss) for loss in losses], "skipped": skipped}, file)
