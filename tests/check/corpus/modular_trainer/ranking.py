"""A Trainer whose loss compares two answers."""

import torch
from transformers import Trainer


class RankingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        better = model(**inputs["better"]).logits
        worse = model(**inputs["worse"]).logits
        loss = -torch.nn.functional.logsigmoid(better - worse).mean()
        return (loss, better) if return_outputs else loss
