"""A curriculum that cannot be recognised, so its job says `guard = "warn"`: the task becomes harder fourfold, step by step."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import fit, mlp

STEPS = 40
GUARD = "warn"
PRECISIONS = ("fp32", "bf16")
HARDER_AT = 20
HARDER_STEPS = 6


def train() -> None:
    model = worker.prepare(mlp(8, 1))
    points = torch.randn(64, 8)
    answers = points.sum(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(step: int) -> torch.Tensor:
        scale = 2 ** min(max(0, step - HARDER_AT), HARDER_STEPS)
        return mse_loss(model(points).float(), answers * scale)

    losses = fit(optimizer, loss_of, STEPS)
    assert losses[-1] > 100 * losses[0]
