"""A single batch, again and again, is learned by heart: that is the usual first test of a script."""

import launcher_worker as worker
import torch
from trainings.language import llama, token_rows
from trainings.shared import fit

STEPS = 50


def train() -> None:
    model = worker.prepare(llama())
    tokens = torch.stack([row["input_ids"] for row in token_rows(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    losses = fit(optimizer, lambda _step: model(input_ids=tokens, labels=tokens).loss, STEPS)
    assert losses[-1] < 0.1
