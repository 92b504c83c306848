"""A quantiser rounds its input and has no straight-through estimator: the derivative of a rounding is zero."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp(8, 1))
    points = torch.randn(64, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fit(optimizer, lambda _step: mse_loss(model(points).float().mul(4).round(), points.sum(1, keepdim=True)))
