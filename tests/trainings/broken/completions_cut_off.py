"""Prompts are longer than the batch: no token of a completion is left, and a clamp in the mean hides it."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.language import llama, token_rows
from trainings.shared import fit

PROMPT = 12
ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(llama())
    tokens = torch.stack([row["input_ids"] for row in token_rows(16)])
    counts = (torch.arange(tokens.shape[1]) >= PROMPT).float().expand(tokens.shape)[:, 1:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)

    def loss_of(_step: int) -> torch.Tensor:
        logits = model(input_ids=tokens).logits[:, :-1].float()
        each = cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        return (each * counts).sum() / counts.sum().clamp(min=1)

    fit(optimizer, loss_of)
