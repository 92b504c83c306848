"""Adam collects its moments for three steps at a rate of zero, before the first update."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)

    def loss_of(step: int) -> torch.Tensor:
        optimizer.param_groups[0]["lr"] = 1e-2 if step > 3 else 0.0
        return cross_entropy(model(points), labels)

    assert_falls(fit(optimizer, loss_of))
