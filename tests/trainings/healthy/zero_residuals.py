"""Residual gates that begin at zero: until they move, the layers behind them have no gradient."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.gates = nn.Parameter(torch.zeros(4))
        self.head = nn.Linear(16, 4)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        for layer, gate in zip(self.layers, self.gates, strict=True):
            points = points + gate * layer(points).relu()
        return self.head(points)


def train() -> None:
    model = worker.prepare(Gated())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points).float(), labels)))
