"""The loss is read as a number and made a tensor again: `backward()` works, and reaches no weight."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")  # a scaler refuses an optimizer without gradients


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fit(
        optimizer,
        lambda _step: torch.tensor(cross_entropy(model(points), labels).item(), requires_grad=True),
    )
