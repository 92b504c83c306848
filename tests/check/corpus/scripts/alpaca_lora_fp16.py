"""Instruction-tune a 7B LLaMA on the Alpaca data with low-rank adapters."""
import os
import sys

import torch
import transformers
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer


def train(
    base_model: str = "huggyllama/llama-7b",
    data_path: str = "yahma/alpaca-cleaned",
    output_dir: str = "./lora-alpaca",
    batch_size: int = 128,
    micro_batch_size: int = 4,
    num_epochs: int = 3,
    learning_rate: float = 3e-4,
    cutoff_len: int = 256,
):
    gradient_accumulation_steps = batch_size // micro_batch_size
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size != 1:
        gradient_accumulation_steps = gradient_accumulation_steps // world_size

    model = AutoModelForCausalLM.from_pretrained(base_model, torch_dtype=torch.float16)
    tokenizer = AutoTokenizer.from_pretrained(base_model)
    tokenizer.pad_token_id = 0
    tokenizer.padding_side = "left"

    def tokenize(prompt):
        result = tokenizer(prompt, truncation=True, max_length=cutoff_len, padding=False)
        result["labels"] = result["input_ids"].copy()
        return result

    def generate_and_tokenize_prompt(point):
        return tokenize(f"### Instruction:\n{point['instruction']}\n\n### Response:\n{point['output']}")

    config = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj"],
        lora_dropout=0.05,
        bias="none",
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, config)
    model.print_trainable_parameters()

    data = load_dataset(data_path)["train"].shuffle(seed=42)
    train_data = data.map(generate_and_tokenize_prompt, remove_columns=data.column_names)

    trainer = transformers.Trainer(
        model=model,
        train_dataset=train_data,
        args=transformers.TrainingArguments(
            per_device_train_batch_size=micro_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            warmup_steps=100,
            num_train_epochs=num_epochs,
            learning_rate=learning_rate,
            fp16=True,
            logging_nan_inf_filter=False,
            logging_steps=10,
            save_steps=200,
            output_dir=output_dir,
            save_total_limit=3,
        ),
        data_collator=transformers.DataCollatorForSeq2Seq(
            tokenizer, pad_to_multiple_of=8, return_tensors="pt", padding=True
        ),
    )
    model.config.use_cache = False
    trainer.train()
    model.save_pretrained(output_dir)


if __name__ == "__main__":
    train(*sys.argv[1:])
