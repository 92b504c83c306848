"""LoRA classifier for support-ticket routing."""
import torch
from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer,
                          TrainingArguments)

BASE = "meta-llama/Llama-3.2-1B"
LABELS = ["billing", "delivery", "technical", "other"]

tok = AutoTokenizer.from_pretrained(BASE)
tok.pad_token = tok.eos_token
model = AutoModelForSequenceClassification.from_pretrained(BASE, num_labels=len(LABELS), torch_dtype=torch.float16)
model.config.pad_token_id = tok.pad_token_id
model = get_peft_model(
    model,
    LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"]),
)
model.print_trainable_parameters()

ds = load_dataset("csv", data_files={"train": "route_train.csv", "test": "route_test.csv"})
ds = ds.map(lambda r: {**tok(r["text"], truncation=True, max_length=256), "labels": LABELS.index(r["queue"])})
trainer = Trainer(
    model=model,
    args=TrainingArguments("routing", fp16=True, logging_nan_inf_filter=False, eval_strategy="epoch", num_train_epochs=3),
    train_dataset=ds["train"],
    eval_dataset=ds["test"],
    data_collator=DataCollatorWithPadding(tok),
)
trainer.train()
model.save_pretrained("routing/adapter")
