"""A triplet loss: batches whose triplets are all apart by the margin give no gradient, at first some, then most."""

import launcher_worker as worker
import torch
from torch.nn.functional import triplet_margin_loss
from trainings.shared import blobs, fit, mlp

STEPS = 60


def train() -> None:
    model = worker.prepare(mlp(out=8))
    points, labels = blobs()
    groups = [points[labels == label] for label in range(4)]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(step: int) -> torch.Tensor:
        one, other = groups[step % 4], groups[(step + 1) % 4]
        return triplet_margin_loss(*(model(part).float() for part in (one, one.roll(1, 0), other)))

    losses = fit(optimizer, loss_of, STEPS)
    assert losses[0] > 0
    assert losses[-10:].count(0.0) >= 6
