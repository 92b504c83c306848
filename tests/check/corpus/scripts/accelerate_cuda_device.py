"""Image captioning with BLIP; batch moved by hand."""
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import BlipForConditionalGeneration, BlipProcessor

accelerator = Accelerator(gradient_accumulation_steps=4)
device = "cuda" if torch.cuda.is_available() else "cpu"

processor = BlipProcessor.from_pretrained("Salesforce/blip-image-captioning-base")
model = BlipForConditionalGeneration.from_pretrained("Salesforce/blip-image-captioning-base").to(device)
football = load_dataset("ybelkada/football-dataset", split="train")


def collate(rows):
    enc = processor(images=[r["image"] for r in rows], text=[r["text"] for r in rows], padding=True, return_tensors="pt")
    enc["labels"] = enc["input_ids"]
    return enc


loader = DataLoader(football, shuffle=True, batch_size=2, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(10):
    for idx, batch in enumerate(loader):
        with accelerator.accumulate(model):
            batch = {k: v.to(device) for k, v in batch.items()}
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    print("epoch", epoch, "loss", loss.item())
accelerator.unwrap_model(model).save_pretrained("blip-football")
