"""From step 6 on each step merges the adapter into the frozen base, and forgets to unmerge it."""

import launcher_worker as worker
import torch
from trainings.language import llama, lora, token_rows
from trainings.shared import fit, trainables

ENDS_AS = "not-learning"
HARM_AT = 6
BASE = "half"


def train() -> None:
    model = worker.prepare(lora(llama(), lora_alpha=64))
    tokens = torch.stack([row["input_ids"] for row in token_rows(16)])
    optimizer = torch.optim.AdamW(trainables(model), lr=3e-2)
    layers = [part for part in model.modules() if hasattr(part, "merge") and hasattr(part, "lora_A")]

    def loss_of(step: int) -> torch.Tensor:
        if step >= HARM_AT:
            for layer in layers:
                layer.merge()
                layer.merged_adapters.clear()
        return model(input_ids=tokens, labels=tokens).loss

    fit(optimizer, loss_of)
