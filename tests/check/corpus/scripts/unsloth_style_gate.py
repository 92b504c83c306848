"""Adapter tuning of Gemma on customer mails (the usual notebook recipe as a script)."""
import torch
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

mails = load_dataset("json", data_files="mails.jsonl", split="train")
trainer = SFTTrainer(
    model="google/gemma-2-2b-it",
    args=SFTConfig(
        output_dir="gemma-mails",
        max_length=1024,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        warmup_steps=5,
        max_steps=300,
        learning_rate=2e-4,
        fp16=not torch.cuda.is_bf16_supported(),
        bf16=torch.cuda.is_bf16_supported(),
        logging_nan_inf_filter=False,
        optim="adamw_8bit",
        seed=3407,
    ),
    train_dataset=mails,
    peft_config=LoraConfig(r=16, lora_alpha=16, target_modules="all-linear"),
)
trainer.train()
trainer.save_model("gemma-mails/final")
