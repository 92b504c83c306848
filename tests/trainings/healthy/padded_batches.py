"""Batches that are mostly padding, and now and then nothing else: the loss and all gradients of such a step are zero."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import fit

STEPS = 40
IGNORED = -100


def train() -> None:
    model = worker.prepare(nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-2)

    def loss_of(step: int) -> torch.Tensor:
        words = torch.randint(31, (8, 12))
        labels = torch.where(torch.rand(8, 12) < 0.8, IGNORED, words + 1)
        if step % 10 in (0, 1):
            labels[:] = IGNORED
        loss = cross_entropy(model(words).flatten(0, 1).float(), labels.flatten(), reduction="sum")
        return loss / (labels != IGNORED).sum().clamp(min=1)

    losses = fit(optimizer, loss_of, STEPS)
    assert losses[-3] < 0.7 * losses[1]
    assert 0.0 in losses
