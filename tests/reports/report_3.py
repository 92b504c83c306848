"""Report 3: grad_norm is nan, the loss is 0.0, the accuracy is 0.0, and the training ends as if all were well.

Blamed: fp16 twice over. In truth the trainables are fp16, in which Adam's eps is zero, and the Trainer's filter prints
the NaN as 0.0.
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
lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear")
if AS_REPORTED:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16)
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
else:
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(path, **worker.model_arguments()), lora)
train(model, {"learning_rate": 1e-2}, {"optim": "adamw_torch"} if AS_REPORTED else None)
