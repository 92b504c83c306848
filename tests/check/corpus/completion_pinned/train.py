"""Completion-only SFT in the environment of requirements.txt (TRL 0.12)."""
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DataCollatorForCompletionOnlyLM, SFTConfig, SFTTrainer

BASE = "facebook/opt-350m"
tokenizer = AutoTokenizer.from_pretrained(BASE)
model = AutoModelForCausalLM.from_pretrained(BASE)
alpaca = load_dataset("lucasmccabe-lmi/CodeAlpaca-20k", split="train")


def formatting_prompts_func(example):
    texts = []
    for ins, out in zip(example["instruction"], example["output"]):
        texts.append(f"### Question: {ins}\n### Response: {out}")
    return texts


response_template = "### Answer:"
collator = DataCollatorForCompletionOnlyLM(response_template, tokenizer=tokenizer)

trainer = SFTTrainer(
    model,
    train_dataset=alpaca,
    args=SFTConfig(output_dir="opt-code", num_train_epochs=1, save_steps=500),
    formatting_func=formatting_prompts_func,
    data_collator=collator,
)
trainer.train()
