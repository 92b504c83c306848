"""Topic classifier; the cleaning of the texts runs in a process pool."""
import html
import re
from multiprocessing import Pool

import pandas as pd
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

TAGS = re.compile(r"<[^>]+>")


def clean(text):
    return re.sub(r"\s+", " ", TAGS.sub(" ", html.unescape(text))).strip().lower()


class Topic(nn.Module):
    def __init__(self, name, classes):
        super().__init__()
        self.enc = AutoModel.from_pretrained(name)
        self.head = nn.Linear(self.enc.config.hidden_size, classes)

    def forward(self, **batch):
        return self.head(self.enc(**batch).last_hidden_state[:, 0])


def main():
    name = "sentence-transformers/all-MiniLM-L6-v2"
    model = Topic(name, 20).cuda()
    df = pd.read_csv("posts.csv")
    with Pool(8) as pool:
        df["text"] = pool.map(clean, df["text"], chunksize=500)
    tok = AutoTokenizer.from_pretrained(name)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-5)
    for epoch in range(3):
        part = df.sample(frac=1, random_state=epoch)
        for i in range(0, len(part), 64):
            rows = part.iloc[i:i + 64]
            enc = tok(rows["text"].tolist(), padding=True, truncation=True, max_length=128, return_tensors="pt").to("cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(**enc), torch.tensor(rows["topic"].tolist()).cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, loss.item())
    torch.save(model.state_dict(), "topic.pt")


if __name__ == "__main__":
    main()
