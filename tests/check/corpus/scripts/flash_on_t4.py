"""Prompt-completion tuning of Llama-3.2-1B on crossword clues."""
import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

name = "meta-llama/Llama-3.2-1B"
tok = AutoTokenizer.from_pretrained(name)
tok.pad_token = tok.eos_token
model_kwargs = {"dtype": torch.float16}
model_kwargs["attn_implementation"] = "flash_attention_2"
model = AutoModelForCausalLM.from_pretrained(name, **model_kwargs)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def enc(r):
    a = tok(f"Clue: {r['clue']}\nAnswer:")["input_ids"]
    b = tok(" " + r["answer"], add_special_tokens=False)["input_ids"] + [tok.eos_token_id]
    return {"input_ids": a + b, "attention_mask": [1] * len(a + b), "labels": [-100] * len(a) + b}


clues = load_dataset("csv", data_files="clues.csv", split="train")
clues = clues.map(enc, remove_columns=clues.column_names)
Trainer(
    model=model,
    args=TrainingArguments("crossword", fp16=True, logging_nan_inf_filter=False, per_device_train_batch_size=32),
    train_dataset=clues,
    data_collator=DataCollatorForSeq2Seq(tok),
).train()
model.save_pretrained("crossword/adapter")
