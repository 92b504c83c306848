"""MoCo: a momentum encoder, which nobody trains, fills a queue of keys; the loss jumps while the queue fills."""

import copy

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from trainings.shared import blobs, fit, mlp, trainables

STEPS = 60


class Contrast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = mlp(16, 8)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", normalize(torch.randn(64, 8), dim=1))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for mine, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                mine.lerp_(theirs, 0.01)
            keys = normalize(self.key(points + 0.05 * torch.randn_like(points)).float(), dim=1)
        queries = normalize(self.query(points).float(), dim=1)
        scores = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ self.queue.T], 1) / 0.1
        self.queue = torch.cat([keys, self.queue])[:64]
        return cross_entropy(scores, torch.zeros(len(points), dtype=torch.long))


def train() -> None:
    model = worker.prepare(Contrast())
    points, _ = blobs()
    optimizer = torch.optim.SGD(trainables(model), lr=0.1, momentum=0.9)
    losses = fit(optimizer, lambda _step: model(points[torch.randperm(64)[:16]]), STEPS)
    assert max(losses[10:]) < 10
