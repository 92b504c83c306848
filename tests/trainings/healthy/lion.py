"""Lion: every weight moves by the same amount, whatever its gradient."""

import launcher_worker as worker
from lion_pytorch import Lion
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = Lion(model.parameters(), lr=1e-2)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels)))
