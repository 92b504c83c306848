"""Kaggle P100: tune TinyLlama on trivia."""
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("TinyLlama/TinyLlama-1.1B-Chat-v1.0", dtype=torch.bfloat16)
trivia = load_dataset("trivia_qa", "rc.nocontext", split="train[:10%]")
trivia = trivia.map(lambda r: {"prompt": r["question"] + "\n", "completion": r["answer"]["value"]},
                    remove_columns=trivia.column_names)
cfg = SFTConfig(
    output_dir="/kaggle/working/tinyllama",
    max_length=256,
    per_device_train_batch_size=8,
    bf16=True,
    torch_compile=True,
    save_strategy="epoch",
    report_to="none",
)
trainer = SFTTrainer(
    model=model,
    args=cfg,
    train_dataset=trivia,
    peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
