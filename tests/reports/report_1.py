"""Report 1, a rented card: every weight of an fp16 model is trained with fp16=True, on a card without bf16.

Blamed: `device_map="auto"` beside fp16. In truth the trainables are fp16. The mend that was found asks
`is_bf16_supported()`, which says yes on cards that only emulate it.
"""

import sys

import launcher_worker as worker
import torch
from common import CudaPath, collate, rows, tell
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

AS_REPORTED = len(sys.argv) > 1
path = sys.argv[1] if AS_REPORTED else worker.knobs().model

torch.manual_seed(0)
own = {"learning_rate": 3e-3, "max_steps": 30, "logging_steps": 1}
if AS_REPORTED:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16, device_map="cpu")
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
    model = worker.prepare(AutoModelForCausalLM.from_pretrained(path, **worker.model_arguments()))
    arguments = TrainingArguments(**worker.training_arguments(**own))
    callbacks = [worker.trainer_callback()]
    trainer = Trainer(model, arguments, train_dataset=rows(), data_collator=collate, callbacks=callbacks)
trainer.train()
tell([line["loss"] for line in trainer.state.log_history if "loss" in line])
worker.done(trainer.state.global_step)
