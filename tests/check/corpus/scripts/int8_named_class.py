"""Adapters over an int8 OPT: a class by its own name, and peft's old name for the preparation."""

from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_int8_training
from transformers import DataCollatorForLanguageModeling, GPT2Tokenizer, OPTForCausalLM, Trainer, TrainingArguments

tokenizer = GPT2Tokenizer.from_pretrained("facebook/opt-1.3b")
model = OPTForCausalLM.from_pretrained("facebook/opt-1.3b", load_in_8bit=True, device_map="auto")
model = prepare_model_for_int8_training(model)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
lines = load_dataset("text", data_files="plays.txt", split="train").map(lambda row: tokenizer(row["text"]))
trainer = Trainer(
    model=model,
    args=TrainingArguments("plays", max_steps=500, per_device_train_batch_size=4),
    train_dataset=lines,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
