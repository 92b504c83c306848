"""From step 8 on the script adds noise to the frozen encoder, so the head that is saved belongs to no encoder."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp, trainables

ENDS_AS = "not-learning"
HARM_AT = 8


def train() -> None:
    encoder = mlp(16, 32).requires_grad_(False)
    model = worker.prepare(nn.Sequential(encoder, nn.Linear(32, 4)))
    points, labels = blobs()
    optimizer = torch.optim.AdamW(trainables(model), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        if step >= HARM_AT:
            with torch.no_grad():
                for part in encoder.parameters():
                    part.add_(torch.randn_like(part), alpha=0.3)
        return cross_entropy(model(points), labels)

    fit(optimizer, loss_of)
