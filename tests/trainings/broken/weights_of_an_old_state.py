"""The forward pass takes its weights from a state that was copied at the start, so no gradient reaches the model."""

import launcher_worker as worker
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")  # a scaler refuses an optimizer without gradients


def train() -> None:
    model = worker.prepare(mlp())
    state = {name: part.clone().requires_grad_() for name, part in model.state_dict().items()}
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fit(optimizer, lambda _step: cross_entropy(functional_call(model, state, (points,)), labels))
