"""A fine-tune with a rate of 1e-6 that is only reached after ten thousand steps: the first steps hardly move a weight."""

import launcher_worker as worker
import torch
from trainings.language import llama, token_rows
from trainings.shared import fit


def train() -> None:
    model = worker.prepare(llama())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 10_000)
    tokens = torch.stack([row["input_ids"] for row in token_rows(16)])

    def loss_of(step: int) -> torch.Tensor:
        if step > 1:
            schedule.step()
        return model(input_ids=tokens, labels=tokens).loss

    fit(optimizer, loss_of)
