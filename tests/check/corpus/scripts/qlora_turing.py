"""QLoRA of Mistral on a workstation; the settings are dictionaries on top."""
import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, DataCollatorForLanguageModeling,
                          Trainer, TrainingArguments)

MODEL_ARGS = {
    "pretrained_model_name_or_path": "mistralai/Mistral-7B-v0.1",
    "attn_implementation": "flash_attention_2",
    "quantization_config": BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float16
    ),
}
TRAIN_ARGS = dict(
    output_dir="mistral-wiki",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=32,
    gradient_checkpointing=True,
    max_steps=500,
    bf16=True,
)

tok = AutoTokenizer.from_pretrained(MODEL_ARGS["pretrained_model_name_or_path"])
tok.pad_token = tok.unk_token
model = AutoModelForCausalLM.from_pretrained(**MODEL_ARGS)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=32, lora_alpha=32, target_modules="all-linear"))

wiki = load_dataset("wikitext", "wikitext-2-raw-v1", split="train").filter(lambda r: len(r["text"]) > 100)
wiki = wiki.map(lambda b: tok(b["text"], truncation=True, max_length=512), batched=True, remove_columns=["text"])
trainer = Trainer(model=model, args=TrainingArguments(**TRAIN_ARGS), train_dataset=wiki,
                  data_collator=DataCollatorForLanguageModeling(tok, mlm=False))
trainer.train()
model.save_pretrained("mistral-wiki/adapter")
