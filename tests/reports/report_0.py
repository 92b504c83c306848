"""Report 0, a TITAN RTX: an fp16 model with adapters and a saved head, fp16=True, gradient checkpointing.

Blamed: a scaler that is broken. In truth the head of `modules_to_save` is trained in fp16, which no scaler unscales.
"""

import sys

import launcher_worker as worker
import torch
from common import train
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

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
train(model, {"learning_rate": 1e-2, "gradient_checkpointing": True}, {"fp16": True} if AS_REPORTED else None)
