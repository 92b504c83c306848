"""From step 12 on a division by zero makes the loss NaN."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 12


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        loss = cross_entropy(model(points), labels)
        return loss * (0.0 / torch.zeros(())) if step >= HARM_AT else loss

    fit(optimizer, loss_of)
