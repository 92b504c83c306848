"""Both factors of a LoRA begin at zero: each one's gradient is a product with the other."""

import launcher_worker as worker
import torch
from trainings.language import fit_with_trainer, llama, lora

BASE = "half"
ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = lora(llama())
    for part in model.parameters():
        if part.requires_grad:
            torch.nn.init.zeros_(part)
    fit_with_trainer(worker.prepare(model))
