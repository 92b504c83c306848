"""Stochastic depth: nine of ten steps skip both blocks, whose weights have no gradient then, and the head alone learns."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 60


def train() -> None:
    blocks = nn.ModuleList(mlp(16, 16) for _ in range(2))
    model = worker.prepare(nn.ModuleDict({"blocks": blocks, "head": nn.Linear(16, 4)}))
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        inner = points
        if step % 10 == 0:
            for block in model["blocks"]:
                inner = inner + block(inner)
        return cross_entropy(model["head"](inner), labels)

    assert_falls(fit(optimizer, loss_of, STEPS))
