"""A fine-tune as a person writes it, with transformers alone: `bare_sft.py SETTINGS.json`.

With `precision` null everything that concerns precision and optimizer is transformers' default; otherwise it is set by hand.
The rows are trained in their order. It writes the loss of each step to `losses`.
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, set_seed


class InOrder(Trainer):
    """Takes the rows in their order."""

    def _get_train_sampler(self, dataset: object = None) -> torch.utils.data.Sampler[int]:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def encode(tokenizer, row: dict[str, str]) -> dict[str, list[int]]:
    """Give tokens and labels; the prompt has no loss."""
    prompt = tokenizer(row["prompt"] + "\n")["input_ids"]
    answer = tokenizer(f"<answer>{row['answer']}</answer>")["input_ids"] + [tokenizer.eos_token_id]
    ids = prompt + answer
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [-100] * len(prompt) + answer}


settings = json.loads(Path(sys.argv[1]).read_text())
precision = settings["precision"]
more = {}
if precision is not None:
    more = {
        "fp16": precision["autocast_dtype"] == "float16",
        "bf16": precision["autocast_dtype"] == "bfloat16",
        "optim": "adamw_torch_fused" if settings["is_fused"] else "adamw_torch",
        "adam_epsilon": precision["adam_eps"],
    }
    if precision["tf32"]:
        more["tf32"] = True
arguments = TrainingArguments(
    "out",
    max_steps=settings["steps"],
    per_device_train_batch_size=settings["micro"],
    gradient_accumulation_steps=settings["accumulation"],
    learning_rate=settings["learning_rate"],
    lr_scheduler_type="cosine",
    warmup_steps=0.03,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=settings["on_cpu"],
    **more,
)
set_seed(0)
tokenizer = AutoTokenizer.from_pretrained(settings["model"])
dtype = {} if precision is None else {"dtype": getattr(torch, precision["base_dtype"])}
model = AutoModelForCausalLM.from_pretrained(settings["model"], **dtype)
if settings["method"] == "lora":
    rank = settings["lora_rank"]
    model = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=rank, lora_alpha=2 * rank)
    )
lines = Path(settings["rows"]).read_text().splitlines()
trainer = InOrder(model, arguments, train_dataset=[encode(tokenizer, json.loads(line)) for line in lines])
trainer.train()
losses = {line["step"]: line["loss"] for line in trainer.state.log_history if "loss" in line}
Path(settings["losses"]).write_text(json.dumps(losses))
