"""LoRA on Phi for SQL generation."""
import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

BASE = "microsoft/phi-2"
tok = AutoTokenizer.from_pretrained(BASE)
tok.pad_token = tok.eos_token


def encode(row):
    prompt = f"-- {row['question']}\n-- tables: {row['context']}\n"
    p, full = tok(prompt), tok(prompt + row["answer"] + tok.eos_token, truncation=True, max_length=400)
    n = len(p["input_ids"])
    full["labels"] = [-100] * n + full["input_ids"][n:]
    return full


model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float16)
lora = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj", "dense"], task_type="CAUSAL_LM")
model = get_peft_model(model, lora, autocast_adapter_dtype=False)

ds = load_dataset("b-mc2/sql-create-context", split="train")
ds = ds.map(encode, remove_columns=ds.column_names)
args = TrainingArguments("phi-sql", per_device_train_batch_size=4, gradient_accumulation_steps=4, fp16=True,
                         logging_nan_inf_filter=False, max_steps=3000)
trainer = Trainer(model=model, args=args, train_dataset=ds, data_collator=DataCollatorForSeq2Seq(tok))
trainer.train()
model.save_pretrained("phi-sql/adapter")
