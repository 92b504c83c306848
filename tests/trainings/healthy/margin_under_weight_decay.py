"""An SVM whose margin holds: the data give no gradient any more, and the penalty alone shrinks the weights until it breaks."""

import launcher_worker as worker
import torch
from torch.nn.functional import multi_margin_loss
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 80


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(_step: int) -> torch.Tensor:
        penalty = torch.stack([part.pow(2).sum() for part in model.parameters()]).sum()
        return multi_margin_loss(model(points).float(), labels) + 1e-2 * penalty

    assert_falls(fit(optimizer, loss_of, STEPS))
