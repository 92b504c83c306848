"""LoRA+: B learns sixteen times as fast as A, in an optimizer with several groups."""

import launcher_worker as worker
import torch
from peft.optimizers import create_loraplus_optimizer
from trainings.language import llama, lora, token_rows
from trainings.shared import assert_falls, fit

BASE = "half"
STEPS = 40


def train() -> None:
    model = worker.prepare(lora(llama()))
    optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=2e-3, loraplus_lr_ratio=16)
    tokens = torch.stack([row["input_ids"] for row in token_rows(16)])
    assert_falls(fit(optimizer, lambda _step: model(input_ids=tokens, labels=tokens).loss, STEPS), to=0.95)
