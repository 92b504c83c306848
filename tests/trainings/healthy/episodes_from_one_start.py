"""Test-time adaptation in episodes: after every three steps the weights and the optimizer go back to where they began."""

import copy

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

STEPS = 48


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    start, moments = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    falls = []

    def loss_of(step: int) -> torch.Tensor:
        if step % 3 == 1:
            model.load_state_dict(start)
            optimizer.load_state_dict(copy.deepcopy(moments))
            falls.append([])
        some = torch.arange(64)[(step - 1) // 3 % 4 :: 4]
        loss = cross_entropy(model(points[some]), labels[some])
        falls[-1].append(loss.item())
        return loss

    fit(optimizer, loss_of, STEPS)
    assert all(fall[-1] < fall[0] for fall in falls)
