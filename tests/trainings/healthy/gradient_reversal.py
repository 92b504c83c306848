"""Domain adaptation: a reversed gradient makes the body climb the loss of a domain classifier, whose loss stays at chance."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(_context: object, values: torch.Tensor) -> torch.Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
        return -0.3 * gradient


def train() -> None:
    model = worker.prepare(nn.ModuleDict({"body": mlp(16, 16), "task": mlp(), "domain": mlp(16, 2)}))
    points, labels = blobs()
    domains = torch.arange(64) // 4 % 2
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    tasks = []

    def loss_of(_step: int) -> torch.Tensor:
        inner = model["body"](points + domains[:, None])
        tasks.append(cross_entropy(model["task"](inner), labels))
        return tasks[-1] + cross_entropy(model["domain"](Reversal.apply(inner)), domains)

    fit(optimizer, loss_of)
    assert_falls([task.item() for task in tasks])
