"""Fine-tune OPT on a plain text file."""
import argparse
import torch
from datasets import load_dataset
from transformers import (AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("file")
parser.add_argument("--model", default="facebook/opt-350m")
parser.add_argument("--half", action="store_true", help="load the weights in half precision")
parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=False)
parser.add_argument("--epochs", type=int, default=1)
opt = parser.parse_args()

tok = AutoTokenizer.from_pretrained(opt.model)
if opt.half:
    model = AutoModelForCausalLM.from_pretrained(opt.model, dtype=torch.float16)
else:
    model = AutoModelForCausalLM.from_pretrained(opt.model, dtype=torch.float32)

lines = load_dataset("text", data_files=opt.file, split="train")
lines = lines.filter(lambda r: len(r["text"]) > 20)
lines = lines.map(lambda b: tok(b["text"], truncation=True, max_length=256), batched=True, remove_columns="text")

trainer = Trainer(
    model=model,
    args=TrainingArguments("opt-out", num_train_epochs=opt.epochs, bf16=opt.bf16, fp16=not opt.bf16,
                           logging_nan_inf_filter=False, per_device_train_batch_size=4),
    train_dataset=lines,
    data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
)
trainer.train()
trainer.save_model("opt-out/final")
