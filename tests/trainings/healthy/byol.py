"""BYOL: a target network that follows slowly, a predictor, and a loss that begins small."""

import copy

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cosine_similarity
from trainings.shared import assert_falls, blobs, fit, mlp, trainables

STEPS = 60


class Byol(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = mlp(out=8)
        self.predictor = mlp(8, 8)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return -cosine_similarity(self.predictor(self.online(one)).float(), self.target(other).float()).mean()


def train() -> None:
    model = worker.prepare(Byol())
    points, _ = blobs()
    optimizer = torch.optim.SGD(trainables(model), lr=0.3, momentum=0.9)

    def loss_of(_step: int) -> torch.Tensor:
        with torch.no_grad():
            for mine, theirs in zip(model.target.parameters(), model.online.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
        return 1 + model(points + 0.3 * torch.randn_like(points), points + 0.3 * torch.randn_like(points))

    assert_falls(fit(optimizer, loss_of, STEPS), to=0.5)
