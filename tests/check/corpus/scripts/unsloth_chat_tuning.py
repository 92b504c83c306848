"""Tune a small chat model with unsloth, whose SFTTrainer still takes the arguments of old TRL."""

from datasets import load_dataset
from transformers import TrainingArguments
from trl import SFTTrainer
from unsloth import FastLanguageModel, is_bfloat16_supported

LENGTH = 1024

model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-0.6B", max_seq_length=LENGTH, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj", "v_proj"])

recipes = load_dataset("json", data_files="recipes.jsonl", split="train")
trainer = SFTTrainer(
    model=model,
    tokenizer=tokenizer,
    train_dataset=recipes,
    dataset_text_field="recipe",
    max_seq_length=LENGTH,
    packing=False,
    args=TrainingArguments(
        output_dir="cook",
        per_device_train_batch_size=2,
        bf16=is_bfloat16_supported(),
        fp16=not is_bfloat16_supported(),
        logging_nan_inf_filter=False,
        max_steps=200,
    ),
)
trainer.train()
model.save_pretrained("cook/adapters")
