"""Domain adaptation of BLOOM with Accelerate."""
import argparse

import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="bigscience/bloom-560m")
parser.add_argument("--weights", default="float16", choices=["float16", "float32"], help="dtype of the loaded weights")
parser.add_argument("--precision", default="fp16", choices=["no", "fp16"])
parser.add_argument("--lr", type=float, default=1e-5)
parser.add_argument("--steps", type=int, default=2000)
args = parser.parse_args()


def main():
    accelerator = Accelerator(mixed_precision=args.precision, gradient_accumulation_steps=8)
    tok = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.weights))
    ds = load_dataset("json", data_files="law.jsonl", split="train")
    ds = ds.map(lambda r: tok(r["text"], truncation=True, max_length=1024), remove_columns=ds.column_names)
    dl = DataLoader(ds, batch_size=1, shuffle=True, collate_fn=DataCollatorForLanguageModeling(tok, mlm=False))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, opt, dl = accelerator.prepare(model, opt, dl)
    done = 0
    while done < args.steps:
        for batch in dl:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
            done += 1
            if done >= args.steps:
                break
    accelerator.unwrap_model(model).save_pretrained("bloom-law")


if __name__ == "__main__":
    main()
