"""Small MLP-mixer for keyword spotting, kept wholly in half precision."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 1234
torch.manual_seed(SEED)


class Mixer(nn.Module):
    def __init__(self, tokens, dim, classes):
        super().__init__()
        self.t = nn.Sequential(nn.LayerNorm(tokens), nn.Linear(tokens, tokens), nn.GELU())
        self.c = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = x + self.t(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.c(x)
        return self.head(x.mean(1))


feats = torch.load("speech_feats.pt", map_location="cpu")
ds = TensorDataset(feats["x"].half(), feats["y"])
dl = DataLoader(ds, batch_size=64, shuffle=True)

model = Mixer(98, 40, 35).to("cuda", dtype=torch.float16)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, eps=1e-4)

for epoch in range(15):
    for xb, yb in dl:
        logits = model(xb.to("cuda"))
        loss = nn.functional.cross_entropy(logits.float(), yb.to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

torch.save(model.state_dict(), "kws_mixer.pt")
