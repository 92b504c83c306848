"""Train a byte-level LSTM language model and write a small file for the phone."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class CharLSTM(nn.Module):
    def __init__(self, vocab=256, dim=384):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, num_layers=2, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def get_batch(data, block, bs):
    ix = torch.randint(len(data) - block - 1, (bs,))
    x = torch.stack([data[i : i + block] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block] for i in ix])
    return x, y


def export(net, path):
    net.eval()
    net.half()
    torch.save(net.state_dict(), path)


device = "cuda" if torch.cuda.is_available() else "cpu"
data = torch.tensor(list(open("input.txt", "rb").read()), dtype=torch.long, device=device)
model = CharLSTM().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
for it in range(5000):
    x, y = get_batch(data, 128, 64)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if it % 250 == 0:
        print(it, loss.item())

export(model, "charlstm_fp16.pt")
