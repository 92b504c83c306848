"""A mixture of sixteen experts, of which a step uses one or two: the others have no gradient, or one of zero."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit

STEPS = 60


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 16)
        self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(16))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        weights = self.router(points).float().mean(0).softmax(-1)
        return sum(
            weights[chosen] * self.experts[chosen](points).float() for chosen in weights.topk(2).indices
        )


def train() -> None:
    model = worker.prepare(Mixture())
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)

    def loss_of(step: int) -> torch.Tensor:
        some = torch.arange(step % 4, 64, 4) if step % 3 else torch.arange(64)
        return cross_entropy(model(points[some]), labels[some])

    assert_falls(fit(optimizer, loss_of, STEPS))
