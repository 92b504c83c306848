"""At step 8 a state is loaded with `assign=True`: the model has new parameters, and the optimizer moves the old ones."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 8
PRECISIONS = ("fp32", "bf16")  # a scaler refuses an optimizer without gradients


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        if step == HARM_AT:
            copies = {name: part.clone() for name, part in model.state_dict().items()}
            model.load_state_dict(copies, assign=True)
        return cross_entropy(model(points), labels)

    fit(optimizer, loss_of)
