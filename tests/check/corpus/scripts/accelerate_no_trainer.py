"""Text classification without a Trainer (GLUE/MRPC)."""
import argparse
import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    get_scheduler,
)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", type=str, default="bert-base-cased")
    parser.add_argument("--mixed_precision", type=str, default=None, choices=["no", "fp16", "bf16"])
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--output_dir", type=str, default="mrpc")
    return parser.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    set_seed(42)
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path)
    raw = load_dataset("glue", "mrpc")
    with accelerator.main_process_first():
        enc = raw.map(lambda b: tokenizer(b["sentence1"], b["sentence2"], truncation=True), batched=True,
                      remove_columns=["sentence1", "sentence2", "idx"]).rename_column("label", "labels")
    loader = DataLoader(enc["train"], shuffle=True, batch_size=16, collate_fn=DataCollatorWithPadding(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    total = args.num_train_epochs * math.ceil(len(loader))
    sched = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=total)
    model, optimizer, loader, sched = accelerator.prepare(model, optimizer, loader, sched)
    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            sched.step()
            optimizer.zero_grad()
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained(args.output_dir, save_function=accelerator.save)


if __name__ == "__main__":
    main()
