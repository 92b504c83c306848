"""A training that goes wrong on purpose from step BAD on, in the way that its first word says."""

import sys

import launcher_worker as worker
import torch
from common import collate, rows, tell
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

POISON, BAD = sys.argv[1], 12

plan = worker.knobs()
torch.manual_seed(plan.seed)
model = AutoModelForCausalLM.from_pretrained(plan.model, **worker.model_arguments())
model = worker.prepare(
    get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"))
)


class Poisoned(Trainer):
    """Spoils the loss from a step on."""

    def compute_loss(self, *args, **kwargs):
        """Multiply it by what the poison says."""
        loss = super().compute_loss(*args, **kwargs)
        is_bad = self.state.global_step + 1 >= BAD
        factor = {"nan": float("nan"), "overflow": 1e12, "zero": 0.0}.get(POISON, 1.0)
        return loss * factor if is_bad else loss


optimizers = (None, None)
if POISON == "frozen":  # a model that was rebuilt after its optimizer: what is trained is in no model
    other = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.AdamW([other], lr=1e-2)
    optimizers = (optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0))
arguments = TrainingArguments(
    **worker.training_arguments(
        learning_rate={"rate": 1e3, "wide": 1e-3}.get(POISON, 1e-2),
        max_steps=40,
        logging_steps=1,
        lr_scheduler_type="constant",
    )
)
trainer = Poisoned(
    model, arguments, train_dataset=rows(), data_collator=collate, callbacks=[worker.trainer_callback()],
    optimizers=optimizers,
)  # fmt: skip
trainer.train(resume_from_checkpoint=worker.resume_from())
tell([line["loss"] for line in trainer.state.log_history if "loss" in line])
worker.done(trainer.state.global_step)
