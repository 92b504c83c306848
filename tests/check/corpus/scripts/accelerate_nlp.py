"""Sentence-pair regression (STS-B) on any number of cards."""
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

MAX_GPU_BATCH_SIZE = 16


def get_dataloaders(accelerator, tokenizer, batch_size=16):
    ds = load_dataset("glue", "stsb")
    with accelerator.main_process_first():
        ds = ds.map(lambda e: tokenizer(e["sentence1"], e["sentence2"], truncation=True), batched=True,
                    remove_columns=["idx", "sentence1", "sentence2"]).rename_column("label", "labels")

    def collate_fn(examples):
        return tokenizer.pad(examples, padding="longest", return_tensors="pt")

    return (DataLoader(ds["train"], shuffle=True, collate_fn=collate_fn, batch_size=batch_size),
            DataLoader(ds["validation"], collate_fn=collate_fn, batch_size=32))


def training_function(config):
    accelerator = Accelerator()
    tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
    train_dl, eval_dl = get_dataloaders(accelerator, tokenizer, config["batch_size"])
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased", num_labels=1)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, 100, len(train_dl) * config["num_epochs"])
    model, optimizer, train_dl, eval_dl, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dl, eval_dl, lr_scheduler
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        for batch in train_dl:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        model.eval()
        err = []
        for batch in eval_dl:
            with torch.no_grad():
                out = model(**batch)
            pred, ref = accelerator.gather_for_metrics((out.logits.squeeze(-1), batch["labels"]))
            err.append(((pred - ref) ** 2).mean().item())
        accelerator.print(f"epoch {epoch}: mse {sum(err) / len(err):.4f}")
    accelerator.save_model(model, "stsb-bert")


if __name__ == "__main__":
    training_function({"lr": 2e-5, "num_epochs": 3, "batch_size": MAX_GPU_BATCH_SIZE})
