"""What the scripts of the field reports share: a small model, its data, and CUDA's path of a Trainer on a CPU."""

import json
import os

import launcher_worker as worker
import torch
from transformers import Trainer, TrainingArguments

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


def train(model: torch.nn.Module, own: dict[str, object], as_reported: dict[str, object] | None) -> None:
    """Train with a Trainer to the end: with the report's own arguments where they are given, else by our plan."""
    own = {"max_steps": 30, "logging_steps": 1, **own}
    if as_reported is not None:
        own = {"use_cpu": True, "report_to": "none", "save_strategy": "no", **own, **as_reported}
        arguments = TrainingArguments("out", per_device_train_batch_size=8, **own)
        trainer = CudaPath(model, arguments, train_dataset=rows(), data_collator=collate)
    else:
        arguments = TrainingArguments(**worker.training_arguments(**own))
        callbacks = [worker.trainer_callback()]
        model = worker.prepare(model)
        trainer = Trainer(model, arguments, train_dataset=rows(), data_collator=collate, callbacks=callbacks)
    trainer.train()
    tell([line["loss"] for line in trainer.state.log_history if "loss" in line])
    worker.done(trainer.state.global_step)
