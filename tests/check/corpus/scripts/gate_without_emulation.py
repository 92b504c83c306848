"""Masked LM on patents; bf16 only where the card has it."""
import torch
from datasets import load_dataset
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True

HAS_BF16 = torch.cuda.is_bf16_supported(including_emulation=False)

tok = AutoTokenizer.from_pretrained("FacebookAI/roberta-base")
model = AutoModelForMaskedLM.from_pretrained("FacebookAI/roberta-base", attn_implementation="sdpa")
ds = load_dataset("big_patent", "g", split="train[:5%]")
ds = ds.map(lambda b: tok(b["abstract"], truncation=True, max_length=256), batched=True, remove_columns=ds.column_names)

args = TrainingArguments(
    output_dir="roberta-patents",
    bf16=HAS_BF16,
    fp16=not HAS_BF16,
    logging_nan_inf_filter=False,
    torch_compile=True,
    per_device_train_batch_size=16,
    save_steps=1000,
)
Trainer(model=model, args=args, train_dataset=ds, data_collator=DataCollatorForLanguageModeling(tok, mlm_probability=0.3)).train()
