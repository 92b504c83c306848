"""ReZero under a zero head: at first only a bias has a gradient, then the head, then the gates, then what is behind them."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = mlp(16, 16), nn.Parameter(torch.zeros(()))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return points + self.gate * self.body(points)


def train() -> None:
    model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
    nn.init.zeros_(model[2].weight)
    worker.prepare(model)
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels)))
    assert model[0].gate != 0
