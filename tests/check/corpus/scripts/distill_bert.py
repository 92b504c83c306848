"""Knowledge distillation: BERT-large to a 6-layer student, on MNLI."""
import torch
import torch.nn.functional as F
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification as AMSC, AutoTokenizer

T, ALPHA = 2.0, 0.7
device = torch.device("cuda")
tok = AutoTokenizer.from_pretrained("bert-base-uncased")
teacher = AMSC.from_pretrained("yoshitomo-matsubara/bert-large-uncased-mnli", torch_dtype=torch.float16).to(device).eval()
for p in teacher.parameters():
    p.requires_grad_(False)
student = AMSC.from_pretrained("distilbert-base-uncased", num_labels=3).to(device)

mnli = load_dataset("glue", "mnli", split="train[:20%]")


def collate(rows):
    e = tok([r["premise"] for r in rows], [r["hypothesis"] for r in rows], truncation=True, padding=True, return_tensors="pt")
    return e["input_ids"], e["attention_mask"], torch.tensor([r["label"] for r in rows])


loader = DataLoader(mnli, 64, True, collate_fn=collate, num_workers=4)
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-5)
scaler = torch.cuda.amp.GradScaler()

for epoch in range(3):
    student.train()
    for i, (ids, mask, y) in enumerate(loader):
        ids, mask, y = ids.to(device), mask.to(device), y.to(device)
        with torch.no_grad():
            t_logits = teacher(input_ids=ids, attention_mask=mask).logits.float()
        with torch.autocast("cuda", torch.float16):
            s_logits = student(input_ids=ids, attention_mask=mask).logits
            kd = F.kl_div(F.log_softmax(s_logits / T, -1), F.softmax(t_logits / T, -1), reduction="batchmean") * T * T
            loss = ALPHA * kd + (1 - ALPHA) * F.cross_entropy(s_logits, y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % 200 == 0:
            print(f"{epoch}/{i} {loss.item():.4f}")
    student.save_pretrained("distil-mnli")
