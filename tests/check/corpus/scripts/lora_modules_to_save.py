"""Adds new tokens to OPT and tunes adapters together with the embeddings."""
import torch
from accelerate import Accelerator
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

NEW = ["<gene>", "</gene>", "<variant>", "</variant>"]


def build(name):
    tok = AutoTokenizer.from_pretrained(name)
    tok.add_tokens(NEW)
    base = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float16)
    base.resize_token_embeddings(len(tok))
    config = LoraConfig(
        r=32,
        lora_alpha=64,
        target_modules=["q_proj", "k_proj", "v_proj", "out_proj"],
        modules_to_save=["embed_tokens", "lm_head"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(base, config), tok


def main():
    acc = Accelerator(mixed_precision="fp16")
    model, tok = build("facebook/opt-1.3b")
    ds = load_dataset("json", data_files="pubmed.jsonl", split="train")
    ds = ds.map(lambda r: tok(r["abstract"], truncation=True, max_length=512), remove_columns=ds.column_names)
    dl = DataLoader(ds, 4, shuffle=True, collate_fn=DataCollatorForLanguageModeling(tok, mlm=False))
    opt = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    model, opt, dl = acc.prepare(model, opt, dl)
    for epoch in range(2):
        for batch in dl:
            loss = model(**batch).loss
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
        acc.print(epoch, loss.item())
    acc.unwrap_model(model).save_pretrained("opt-genes")


main()
