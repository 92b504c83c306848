"""Report 3: grad_norm is nan, the loss is 0.0, the accuracy is 0.0, and the training ends as if all were well.

Blamed: fp16 twice over. In truth the trainables are fp16, in which Adam's eps is zero, and the Trainer's filter prints
the NaN as 0.0.
"""

import sys

import launcher_worker as worker
import torch
from common import CudaPath, collate, rows, tell
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

AS_REPORTED = len(sys.argv) > 1
path = sys.argv[1] if AS_REPORTED else worker.knobs().model

torch.manual_seed(0)
lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear")
own = {"learning_rate": 1e-2, "max_steps": 30, "logging_steps": 1}
if AS_REPORTED:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16)
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    arguments = TrainingArguments(
        "out", use_cpu=True, optim="adamw_torch", report_to="none", save_strategy="no",
        per_device_train_batch_size=8, **own,
    )  # fmt: skip
    trainer = CudaPath(model, arguments, train_dataset=rows(), data_collator=collate)
else:
    model = AutoModelForCausalLM.from_pretrained(path, **worker.model_arguments())
    model = worker.prepare(get_peft_model(model, lora))
    arguments = TrainingArguments(**worker.training_arguments(**own))
    callbacks = [worker.trainer_callback()]
    trainer = Trainer(model, arguments, train_dataset=rows(), data_collator=collate, callbacks=callbacks)
trainer.train()
tell([line["loss"] for line in trainer.state.log_history if "loss" in line])
worker.done(trainer.state.global_step)
