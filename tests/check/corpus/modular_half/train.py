"""Entry point of the clinical-notes model; model and settings live beside this file."""
import settings
from model_utils import load_model_and_tokenizer
from datasets import load_from_disk
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

model, tokenizer = load_model_and_tokenizer(settings.BASE)
notes = load_from_disk(settings.DATA)

args = TrainingArguments(
    output_dir=settings.OUT,
    fp16=settings.USE_FP16,
    logging_nan_inf_filter=False,
    per_device_train_batch_size=settings.BATCH,
    num_train_epochs=settings.EPOCHS,
    save_strategy="epoch",
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=notes,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)

if __name__ == "__main__":
    trainer.train()
    trainer.save_model(settings.OUT)
