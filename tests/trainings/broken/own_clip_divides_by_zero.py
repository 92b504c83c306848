"""The script's own clipping divides by the gradients' norm: in step 9, whose batch is empty of labels, that is 0/0."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, mlp

STEPS = 30
ENDS_AS = "nan-divergence"
HARM_AT = 9
PRECISIONS = ("fp32", "bf16")  # it uses no scaler


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        with worker.autocast():
            weight = float(step != HARM_AT)
            loss = cross_entropy(model(points), labels) * weight
        loss.backward()
        norm = torch.stack([part.grad.norm() for part in model.parameters()]).norm()
        for part in model.parameters():
            part.grad *= 1.0 / norm
        optimizer.step()
        worker.log(step, loss=loss)
