"""The loss is computed from a detached output; a term of weight zero keeps the backward pass alive."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)

    def loss_of(_step: int) -> torch.Tensor:
        guess = model(points)
        return cross_entropy(guess.detach(), labels) + 0.0 * guess.sum()

    fit(optimizer, loss_of)
