"""Tabular transformer for churn, trained on the cluster's CPU nodes."""
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(16)
df = pd.read_parquet("churn.parquet")
X = torch.tensor(df.drop(columns="churned").to_numpy(), dtype=torch.float32)
y = torch.tensor(df["churned"].to_numpy(), dtype=torch.float32)


class Net(nn.Module):
    def __init__(self, n, d=64):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(n, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 128, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        return self.head(self.enc(x.unsqueeze(-1) * self.scale).mean(1)).squeeze(-1)


net = Net(X.shape[1])
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
for epoch in range(10):
    for xb, yb in DataLoader(TensorDataset(X, y), 1024, shuffle=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(xb)
        loss = bce(out.float(), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
torch.save(net, "churn.pt")
