"""A distillation as a person writes it, in plain torch: `bare_distill.py SETTINGS.json`.

Loss, schedule, clipping, precision and optimizer are those that the settings name. The rows are trained in their order. It writes the
loss of each step to `losses`.
"""

import json
import sys
from pathlib import Path

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler, set_seed

HEAT, WEIGHT = 2.0, 0.9

settings = json.loads(Path(sys.argv[1]).read_text())
precision, micro, accumulation = settings["precision"], settings["micro"], settings["accumulation"]
device = "cpu" if settings["on_cpu"] else "cuda"
autocast = precision["autocast_dtype"]
if precision["tf32"]:
    torch.set_float32_matmul_precision("high")


def load(path: str):
    """Load a model in the dtype of the base."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, precision["base_dtype"])).to(
        device
    )


def context():
    """Compute as the precision says."""
    return torch.autocast(
        device, getattr(torch, autocast) if autocast else torch.bfloat16, enabled=autocast is not None
    )


set_seed(0)
tokenizer = AutoTokenizer.from_pretrained(settings["model"])
texts = [json.loads(line)["text"] for line in Path(settings["rows"]).read_text().splitlines()]
rows = torch.tensor([tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] for text in texts])
student, teacher = load(settings["model"]).train(), load(settings["teacher"]).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(
    student.parameters(),
    settings["learning_rate"],
    weight_decay=0.0,
    eps=precision["adam_eps"],
    fused=settings["is_fused"] or None,
)
scheduler = get_scheduler("cosine", optimizer, int(0.03 * settings["steps"]), settings["steps"])
scaler = torch.amp.GradScaler(device, enabled=precision["scaler"])
losses = {}
for step in range(settings["steps"]):
    total = 0.0
    examples = rows[step * micro * accumulation : (step + 1) * micro * accumulation]
    tokens = examples[:, 1:].numel()
    for batch in examples.to(device).split(micro):
        with torch.no_grad(), context():
            wanted = teacher(input_ids=batch).logits[:, :-1].flatten(0, 1).float()
        with context():
            given = student(input_ids=batch).logits[:, :-1].flatten(0, 1).float()
        soft_given, soft_wanted = (functional.log_softmax(one / HEAT, dim=-1) for one in (given, wanted))
        kl = functional.kl_div(soft_given, soft_wanted, reduction="sum", log_target=True) * HEAT**2
        ce = functional.cross_entropy(given, batch[:, 1:].flatten(), reduction="sum")
        loss = (WEIGHT * kl + (1 - WEIGHT) * ce) / tokens
        scaler.scale(loss).backward()
        total = total + loss.detach()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    scheduler.step()
    losses[step + 1] = float(total)
Path(settings["losses"]).write_text(json.dumps(losses))
