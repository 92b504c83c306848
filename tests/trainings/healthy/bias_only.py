"""BitFit: only the biases are trained, and no matrix has a gradient."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp, trainables


def train() -> None:
    model = mlp(hidden=64)
    for layer in (model[0], model[2]):
        layer.weight.requires_grad_(False)
    worker.prepare(model)
    points, labels = blobs()
    optimizer = torch.optim.AdamW(trainables(model), lr=5e-2)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels)))
