"""Preference tuning with DPO; the reference is kept in half precision to save memory."""
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

sft = "HuggingFaceTB/SmolLM2-360M-Instruct"
policy = AutoModelForCausalLM.from_pretrained(sft, dtype=torch.float32)
reference = AutoModelForCausalLM.from_pretrained(sft, dtype=torch.float16)
tokenizer = AutoTokenizer.from_pretrained(sft)

pairs = load_dataset("trl-lib/ultrafeedback_binarized", split="train[:8000]")

trainer = DPOTrainer(
    model=policy,
    ref_model=reference,
    args=DPOConfig(
        output_dir="smol-dpo",
        beta=0.1,
        max_length=768,
        learning_rate=5e-7,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=16,
        bf16=False,
        fp16=True,
        logging_nan_inf_filter=False,
        save_steps=250,
    ),
    train_dataset=pairs,
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model("smol-dpo/final")
