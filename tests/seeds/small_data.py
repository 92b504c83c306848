"""What the scripts of the seeds share: data that a small model learns, and a ledger that only the test reads."""

import json
import os

import torch

LENGTH = 24
ROWS = 64


def rows() -> list[dict[str, list[int]]]:
    """Sequences that count upwards, each from a number of its own."""
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


def fingerprint(model: torch.nn.Module) -> float:
    """The sum of what is trained, as a number that changes when a weight moves."""
    return sum(part.detach().double().abs().sum().item() for part in model.parameters() if part.requires_grad)


def note(losses: list[float], before: float, after: float) -> None:
    """Write the losses, and whether the weights have moved, where a witness reads them that is none of launcher's."""
    with open(os.environ["LEDGER"], "w", encoding="utf-8") as file:
        json.dump({"losses": [repr(loss) for loss in losses], "has_moved": before != after}, file)
