"""Report 1, a rented card: every weight of an fp16 model is trained with fp16=True, on a card without bf16.

Blamed: `device_map="auto"` beside fp16. In truth the trainables are fp16. The mend that was found asks
`is_bf16_supported()`, which says yes on cards that only emulate it.
"""

import sys

import launcher_worker as worker
import torch
from common import train
from transformers import AutoModelForCausalLM

AS_REPORTED = len(sys.argv) > 1
path = sys.argv[1] if AS_REPORTED else worker.knobs().model

torch.manual_seed(0)
if AS_REPORTED:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16, device_map="cpu")
else:
    model = AutoModelForCausalLM.from_pretrained(path, **worker.model_arguments())
train(model, {"learning_rate": 3e-3}, {"fp16": True} if AS_REPORTED else None)
