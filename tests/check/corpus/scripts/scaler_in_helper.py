"""Raw mixed-precision loop for RoBERTa on SST-2."""
import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup


def optimizer_step(loss, opt, scaler, params, sched, clip=1.0):
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(params, clip)
    scaler.step(opt)
    scaler.update()
    sched.step()
    opt.zero_grad()


def collate(tok):
    def fn(rows):
        enc = tok([r["sentence"] for r in rows], padding=True, truncation=True, return_tensors="pt")
        enc["labels"] = torch.tensor([r["label"] for r in rows])
        return enc
    return fn


def main(epochs=2, bs=32, lr=2e-5):
    tok = AutoTokenizer.from_pretrained("roberta-base")
    model = AutoModelForSequenceClassification.from_pretrained("roberta-base", num_labels=2).cuda()
    data = load_dataset("glue", "sst2")["train"]
    loader = DataLoader(data, batch_size=bs, shuffle=True, collate_fn=collate(tok), num_workers=2)
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    sched = get_linear_schedule_with_warmup(opt, 200, epochs * len(loader))
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        for step, batch in enumerate(loader):
            batch = {k: v.cuda(non_blocking=True) for k, v in batch.items()}
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(**batch).loss
            optimizer_step(loss, opt, scaler, model.parameters(), sched)
            if step % 100 == 0:
                print(epoch, step, float(loss))
        model.save_pretrained(f"roberta-sst2-{epoch}")


main()
