"""8-bit LoRA of BLOOMZ for Vietnamese instructions (huấn luyện LoRA 8-bit)."""
import transformers
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "bigscience/bloomz-3b"

model = AutoModelForCausalLM.from_pretrained(MODEL, load_in_8bit=True, device_map="auto")
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=["query_key_value"], lora_dropout=0.05,
                                         bias="none", task_type="CAUSAL_LM"))

# dữ liệu: mỗi dòng một cặp câu hỏi / trả lời
rows = load_dataset("json", data_files="vi_instructions.jsonl", split="train")
rows = rows.map(lambda r: tokenizer(f"Hỏi: {r['q']}\nĐáp: {r['a']}", truncation=True, max_length=256),
                remove_columns=rows.column_names)

trainer = transformers.Trainer(
    model=model,
    train_dataset=rows,
    args=transformers.TrainingArguments(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        warmup_steps=100,
        max_steps=2000,
        learning_rate=2e-4,
        fp16=True,
        logging_steps=1,
        output_dir="outputs",
    ),
    data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
model.config.use_cache = False
trainer.train()
model.save_pretrained("bloomz-vi")
