"""LongLoRA-like context extension: adapters plus norms and embeddings."""
import torch
import transformers
from datasets import load_dataset
from peft import LoraConfig, get_peft_model

CTX = 8192
base = "huggyllama/llama-7b"
config = transformers.AutoConfig.from_pretrained(base)
config.max_position_embeddings = CTX
tokenizer = transformers.AutoTokenizer.from_pretrained(base, model_max_length=CTX)
tokenizer.pad_token = tokenizer.eos_token
model = transformers.AutoModelForCausalLM.from_pretrained(base, config=config, dtype=torch.float16)
model = get_peft_model(
    model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
)
for n, p in model.named_parameters():
    if any(k in n for k in ("embed", "norm")):
        p.requires_grad = True

books = load_dataset("emozilla/pg19", split="train[:1%]")
books = books.map(lambda b: tokenizer(b["text"], truncation=True, max_length=CTX), batched=True,
                  remove_columns=books.column_names)
trainer = transformers.Trainer(
    model=model,
    args=transformers.TrainingArguments(
        output_dir="llama-8k",
        max_steps=1000,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=8,
        gradient_checkpointing=True,
        fp16=True,
        logging_nan_inf_filter=False,
        save_steps=200,
    ),
    train_dataset=books,
    data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_state()
