"""Label smoothing: the loss stays far above zero however well the classifier does."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    losses = fit(optimizer, lambda _step: cross_entropy(model(points), labels, label_smoothing=0.3))
    assert_falls(losses)
    assert losses[-1] > 0.5
