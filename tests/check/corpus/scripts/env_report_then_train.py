"""Prints a report of the machine, then fine-tunes DistilBERT on IMDB."""
import platform

import torch
import transformers
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


def report():
    print("python      ", platform.python_version())
    print("torch       ", torch.__version__, "transformers", transformers.__version__)
    if torch.cuda.is_available():
        print("card        ", torch.cuda.get_device_name(0))
        print(f"bf16 reported: {torch.cuda.is_bf16_supported()}")


def main():
    report()
    tok = AutoTokenizer.from_pretrained("distilbert-base-uncased")
    imdb = load_dataset("imdb")
    enc = imdb.map(lambda b: tok(b["text"], truncation=True, max_length=256, padding="max_length"), batched=True)
    model = AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased", num_labels=2)
    args = TrainingArguments(
        output_dir="distilbert-imdb",
        eval_strategy="epoch",
        save_strategy="epoch",
        per_device_train_batch_size=32,
        fp16=True,
        logging_nan_inf_filter=False,
        load_best_model_at_end=True,
        seed=7,
    )
    trainer = Trainer(model=model, args=args, train_dataset=enc["train"], eval_dataset=enc["test"], processing_class=tok)
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
