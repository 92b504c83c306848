"""A matrix factorisation from factors near zero: each step moves them by more than their first size, and the loss stands at first."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from trainings.shared import assert_falls, fit

STEPS = 60


def train() -> None:
    users, items = torch.arange(32).repeat_interleave(32), torch.arange(32).repeat(32)
    likes = ((users - items) % 4 == 0).float()
    model = worker.prepare(nn.ModuleDict({"user": nn.Embedding(32, 8), "item": nn.Embedding(32, 8)}))
    for part in model.parameters():
        nn.init.normal_(part, std=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        scores = (model["user"](users) * model["item"](items)).sum(1)
        return binary_cross_entropy_with_logits(scores.float(), likes)

    assert_falls(fit(torch.optim.AdamW(model.parameters(), lr=5e-2), loss_of, STEPS))
