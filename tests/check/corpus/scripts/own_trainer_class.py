"""A tiny framework of its own: a Trainer that wants a tokenizer, and an Accelerator counting steps."""
import torch
import torch.nn as nn


class Accelerator:
    """Counts how much faster each epoch gets."""

    def __init__(self):
        self.times = []

    def note(self, seconds):
        self.times.append(seconds)


class WordTokenizer:
    def __init__(self, text):
        self.vocab = {w: i for i, w in enumerate(sorted(set(text.split())))}

    def __call__(self, text):
        return torch.tensor([self.vocab[w] for w in text.split() if w in self.vocab])


class Trainer:
    def __init__(self, model, tokenizer, max_seq_length=64, evaluation_strategy="never", no_cuda=True):
        self.model, self.tokenizer = model, tokenizer
        self.block = max_seq_length
        self.when = evaluation_strategy
        self.device = "cpu" if no_cuda else "cuda"

    def fit(self, text, steps):
        ids = self.tokenizer(text)
        opt = torch.optim.RMSprop(self.model.parameters(), lr=1e-3)
        for _ in range(steps):
            i = torch.randint(len(ids) - self.block - 1, (1,)).item()
            x, y = ids[i:i + self.block], ids[i + 1:i + 1 + self.block]
            loss = nn.functional.cross_entropy(self.model(x), y)
            opt.zero_grad(); loss.backward(); opt.step()
        return loss.item()


text = open("corpus.txt").read()
tok = WordTokenizer(text)
model = nn.Sequential(nn.Embedding(len(tok.vocab), 64), nn.Linear(64, len(tok.vocab)))
acc = Accelerator()
trainer = Trainer(model, tokenizer=tok, max_seq_length=32, evaluation_strategy="epoch", no_cuda=True)
print(trainer.fit(text, 500))
torch.save(model.state_dict(), "bigram.pt")
