"""Stochastic weight averaging: a second model is moved by hand, and takes the trained one's place at the end."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import SWALR, AveragedModel
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 40


def train() -> None:
    model = worker.prepare(mlp())
    average = AveragedModel(model)
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=5)

    def loss_of(step: int) -> torch.Tensor:
        if step > 20:
            schedule.step()
            average.update_parameters(model)
        return cross_entropy(model(points), labels)

    assert_falls(fit(optimizer, loss_of, STEPS))
    model.load_state_dict(average.module.state_dict())
    assert cross_entropy(model(points), labels) < 1
