"""Supervised fine-tune of Mistral on UltraChat with TRL."""
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

dataset = load_dataset("HuggingFaceH4/ultrachat_200k", split="train_sft[:20000]")

config = SFTConfig(
    output_dir="mistral-ultrachat",
    max_length=2048,
    packing=True,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    learning_rate=1e-4,
    bf16=True,
    tf32=True,
    torch_compile=True,
    logging_steps=5,
    save_strategy="epoch",
    model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "flash_attention_2"},
)

trainer = SFTTrainer(
    model="mistralai/Mistral-7B-v0.3",
    args=config,
    train_dataset=dataset,
    peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"),
)

if __name__ == "__main__":
    trainer.train()
    trainer.save_model(config.output_dir)
