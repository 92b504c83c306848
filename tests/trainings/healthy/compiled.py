"""A compiled model: the guard's hooks must not be traced."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    compiled = torch.compile(model, backend="aot_eager")
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(compiled(points), labels)))
