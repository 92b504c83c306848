"""Nobody calls `zero_grad()` on a language model's AdamW, over micro-batches that accumulate."""

import launcher_worker as worker
import torch
from trainings.language import llama, token_rows

STEPS = 30
ENDS_AS = "not-learning"
HARM_AT = 2
PRECISIONS = ("fp32", "bf16")  # under a scaler the old gradients are divided by its scale, and vanish


def train() -> None:
    model = worker.prepare(llama())
    tokens = torch.stack([row["input_ids"] for row in token_rows(16)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, STEPS + 1):
        for some in tokens.chunk(2):
            with worker.autocast():
                loss = model(input_ids=some, labels=some).loss / 2
            loss.backward()
        optimizer.step()
        worker.log(step, loss=loss)
