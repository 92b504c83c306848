"""From step 10 on the logarithm of a probability of zero makes the loss infinite."""

import launcher_worker as worker
import torch
from trainings.shared import blobs, fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 10


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        chances = model(points).float().softmax(-1)[torch.arange(64), labels]
        return -(chances * (step < HARM_AT)).log().mean()

    fit(optimizer, loss_of)
