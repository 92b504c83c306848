"""SAM: each step climbs the loss by hand, takes the gradient there, comes back and descends."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, mlp

STEPS = 30
PRECISIONS = ("fp32", "bf16")  # it uses no scaler


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        loss.backward()
        ways = [0.05 * part.grad / part.grad.norm().clamp(min=1e-9) for part in model.parameters()]
        _climb(model, ways, 1)
        optimizer.zero_grad()
        with worker.autocast():
            there = cross_entropy(model(points), labels)
        there.backward()
        _climb(model, ways, -1)
        optimizer.step()
        losses.append(loss.item())
        worker.log(step, loss=loss)
    assert_falls(losses)


def _climb(model: torch.nn.Module, ways: list[torch.Tensor], sign: int) -> None:
    with torch.no_grad():
        for part, way in zip(model.parameters(), ways, strict=True):
            part.add_(way, alpha=sign)
