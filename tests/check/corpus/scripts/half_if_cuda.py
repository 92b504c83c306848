"""Token classification for addresses, Accelerate, resumes from a plain checkpoint."""
import os
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForTokenClassification, AutoTokenizer

from addresses import AddressData

dtype = torch.float16 if torch.cuda.is_available() else torch.float32


class Run:
    def __init__(self, name, out):
        self.out = out
        self.accelerator = Accelerator(mixed_precision="fp16")
        self.tok = AutoTokenizer.from_pretrained(name)
        self.model = AutoModelForTokenClassification.from_pretrained(name, num_labels=7, torch_dtype=dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-5)
        self.epoch = 0

    def maybe_resume(self):
        path = os.path.join(self.out, "last.pt")
        if os.path.isfile(path):
            ck = torch.load(path)
            self.model.load_state_dict(ck["model"])
            self.epoch = ck["epoch"] + 1

    def fit(self, epochs):
        self.maybe_resume()
        dl = DataLoader(AddressData(self.tok), batch_size=32, shuffle=True)
        self.model, self.optimizer, dl = self.accelerator.prepare(self.model, self.optimizer, dl)
        for e in range(self.epoch, epochs):
            for b in dl:
                loss = self.model(**b).loss
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.accelerator.is_main_process:
                sd = self.accelerator.unwrap_model(self.model).state_dict()
                torch.save({"model": sd, "epoch": e}, os.path.join(self.out, "last.pt"))


if __name__ == "__main__":
    Run("distilbert-base-multilingual-cased", "out").fit(10)
