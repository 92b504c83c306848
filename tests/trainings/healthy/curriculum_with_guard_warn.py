"""A curriculum that cannot be recognised, so its job says `guard = "warn"`: the loss jumps, and stays high for long."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import fit, mlp

STEPS = 40
GUARD = "warn"
PRECISIONS = ("fp32", "bf16")
HARDER_AT = 20


def train() -> None:
    model = worker.prepare(mlp(8, 1))
    points = torch.randn(64, 8)
    answers = points.sum(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = fit(
        optimizer,
        lambda step: mse_loss(model(points).float(), answers * (20 if step >= HARDER_AT else 1)),
        STEPS,
    )
    assert losses[-1] > 100 * losses[0]
