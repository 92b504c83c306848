"""From step 7 on every batch is constant, and the script divides by its standard deviation of zero."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 7


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        batch = torch.ones_like(points) if step >= HARM_AT else points
        return cross_entropy(model((batch - batch.mean(0)) / batch.std(0)), labels)

    fit(optimizer, loss_of)
