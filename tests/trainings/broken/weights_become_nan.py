"""At step 10 the script normalises a row of weights by its norm, which is zero. No loss is logged or returned."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 10


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        if step == HARM_AT:
            with torch.no_grad():
                model[0].weight[::2] = 0
                model[0].weight /= model[0].weight.norm(dim=1, keepdim=True)
        return cross_entropy(model(points), labels)

    fit(optimizer, loss_of)
