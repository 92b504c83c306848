"""A Trainer whose labels are all -100: the mean over no token is NaN."""

import launcher_worker as worker
import torch
from trainings.language import llama, token_rows
from transformers import Trainer, TrainingArguments

ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    rows = [{**row, "labels": torch.full_like(row["labels"], -100)} for row in token_rows()]
    arguments = TrainingArguments(**worker.training_arguments(logging_steps=1))
    Trainer(
        worker.prepare(llama()), arguments, train_dataset=rows, callbacks=[worker.trainer_callback()]
    ).train()
