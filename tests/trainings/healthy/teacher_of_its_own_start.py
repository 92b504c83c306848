"""A teacher that begins with weights of its own, and is drawn quickly to the student: at first it moves far."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp, trainables


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online_network = nn.ModuleDict({"body": mlp()})
        self.average = mlp().requires_grad_(False)


def train() -> None:
    model = worker.prepare(Pair())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(trainables(model), lr=1e-2)

    def loss_of(_step: int) -> torch.Tensor:
        with torch.no_grad():
            pairs = zip(model.average.parameters(), model.online_network.parameters(), strict=True)
            for mine, theirs in pairs:
                mine.lerp_(theirs, 0.1)
        return cross_entropy(model.online_network["body"](points), labels)

    assert_falls(fit(optimizer, loss_of))
