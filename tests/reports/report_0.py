"""Report 0, a TITAN RTX: an fp16 model with adapters and a saved head, fp16=True, gradient checkpointing.

Blamed: a scaler that is broken. In truth the head of `modules_to_save` is trained in fp16, which no scaler unscales.
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
if AS_REPORTED:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16)
else:
    model = AutoModelForCausalLM.from_pretrained(path, **worker.model_arguments())
model = get_peft_model(
    model,
    LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]),
)
own = {
    "learning_rate": 1e-2,
    "max_steps": 30,
    "logging_steps": 1,
    "gradient_checkpointing": True,
}
if AS_REPORTED:
    arguments = TrainingArguments(
        "out",
        fp16=True,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        per_device_train_batch_size=8,
        **own,
    )
    trainer = CudaPath(model, arguments, train_dataset=rows(), data_collator=collate)
else:
    model = worker.prepare(model)
    arguments = TrainingArguments(**worker.training_arguments(**own))
    callbacks = [worker.trainer_callback()]
    trainer = Trainer(model, arguments, train_dataset=rows(), data_collator=collate, callbacks=callbacks)
trainer.train()
tell([line["loss"] for line in trainer.state.log_history if "loss" in line])
worker.done(trainer.state.global_step)
