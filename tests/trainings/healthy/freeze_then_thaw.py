"""The body is frozen for ten steps, then everything is trained, with a new optimizer."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit_scaled, mlp, trainables

STEPS = 30
THAWED_AT = 11


def train() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    worker.prepare(model)
    points, labels = blobs()
    optimizer = torch.optim.SGD(trainables(model), lr=0.3)
    before, losses = model[0].weight.detach().clone(), []
    for step in range(1, STEPS + 1):
        if step == THAWED_AT:
            model.requires_grad_()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        fit_scaled(optimizer, loss)
        losses.append(loss.item())
        worker.log(step, loss=loss)
    assert_falls(losses)
    assert not torch.equal(model[0].weight, before)
