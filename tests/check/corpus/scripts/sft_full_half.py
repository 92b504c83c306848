"""Full fine-tune of SmolLM2 on cooking recipes."""
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer


def to_text(row):
    steps = "\n".join(f"{i}. {s}" for i, s in enumerate(row["directions"], 1))
    return {"text": f"# {row['title']}\n\n{steps}"}


recipes = load_dataset("json", data_files="recipes.jsonl", split="train")
recipes = recipes.map(to_text, remove_columns=recipes.column_names)

args = SFTConfig(
    output_dir="smol-recipes",
    model_init_kwargs={"torch_dtype": "float16", "attn_implementation": "sdpa"},
    max_length=768,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    learning_rate=2e-5,
    fp16=True,
    bf16=False,
    logging_nan_inf_filter=False,
    logging_steps=10,
)

trainer = SFTTrainer(model="HuggingFaceTB/SmolLM2-360M", args=args, train_dataset=recipes)
trainer.train()
trainer.save_model()
