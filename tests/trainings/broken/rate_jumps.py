"""At step 15 a schedule multiplies the learning rate by ten thousand in place of dividing by it."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 15


def train() -> None:
    model = worker.prepare(mlp(8, 1))
    points = torch.randn(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        optimizer.param_groups[0]["lr"] = 1e2 if step >= HARM_AT else 1e-2
        return mse_loss(model(points).float(), points.sum(1, keepdim=True))

    fit(optimizer, loss_of)
