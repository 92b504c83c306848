"""Tune StarCoder2 on shell scripts, on whatever card the queue gives."""
import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments

major, _ = torch.cuda.get_device_capability()
if major >= 8:
    attn, dtype, flags = "flash_attention_2", torch.bfloat16, dict(bf16=True, tf32=True)
else:
    attn, dtype, flags = "sdpa", torch.float16, dict(fp16=True, logging_nan_inf_filter=False)

NAME = "bigcode/starcoder2-3b"
tok = AutoTokenizer.from_pretrained(NAME)
tok.pad_token = tok.eos_token
model = AutoModelForCausalLM.from_pretrained(NAME, dtype=dtype, attn_implementation=attn)
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))

sh = load_dataset("bigcode/the-stack-smol", data_dir="data/shell", split="train")
sh = sh.map(lambda b: tok(b["content"], truncation=True, max_length=1024), batched=True, remove_columns=sh.column_names)
trainer = Trainer(
    model=model,
    args=TrainingArguments("starcoder-sh", per_device_train_batch_size=1, gradient_accumulation_steps=16, **flags),
    train_dataset=sh,
    data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
)
trainer.train()
model.save_pretrained("starcoder-sh/adapter")
