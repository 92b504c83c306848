"""LoRA reward-style classifier over a half-precision LLaMA for review stars."""
import torch
from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments


def upcast_trainable(model):
    for param in model.parameters():
        if param.requires_grad:
            param.data = param.data.to(torch.float32)
    return model


tok = AutoTokenizer.from_pretrained("meta-llama/Llama-3.2-1B")
tok.pad_token = tok.eos_token
model = AutoModelForSequenceClassification.from_pretrained("meta-llama/Llama-3.2-1B", num_labels=5, dtype=torch.float16)
model.config.pad_token_id = tok.pad_token_id
peft_config = LoraConfig(task_type=TaskType.SEQ_CLS, r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"])
model = upcast_trainable(get_peft_model(model, peft_config))

ds = load_dataset("yelp_review_full").map(lambda b: tok(b["text"], truncation=True, max_length=512), batched=True)
args = TrainingArguments(
    output_dir="yelp-lora",
    fp16=True,
    logging_nan_inf_filter=False,
    per_device_train_batch_size=8,
    max_steps=2000,
)
trainer = Trainer(model, args, DataCollatorWithPadding(tok), ds["train"], ds["test"])
trainer.train()
model.save_pretrained("yelp-lora/adapter")
