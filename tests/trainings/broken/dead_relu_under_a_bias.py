"""At step 10 a bias of -100 kills every nonlinearity, and the last bias alone still learns."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 10


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(step: int) -> torch.Tensor:
        if step == HARM_AT:
            model[0].bias.data.fill_(-100)
        return cross_entropy(model(points), labels)

    fit(optimizer, loss_of)
