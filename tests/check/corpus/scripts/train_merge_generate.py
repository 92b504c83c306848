"""Train an adapter, merge it into the base and write three samples."""
import gc

import torch
from datasets import load_dataset
from peft import AutoPeftModelForCausalLM, LoraConfig
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

BASE, OUT = "Qwen/Qwen2.5-1.5B", "qwen-poems"


def fit():
    trainer = SFTTrainer(
        model=BASE,
        args=SFTConfig(OUT, max_length=512, num_train_epochs=2, bf16=True, dataset_text_field="poem"),
        train_dataset=load_dataset("csv", data_files="poems.csv", split="train"),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj"]),
    )
    trainer.train()
    trainer.save_model(OUT)


def merge():
    model = AutoPeftModelForCausalLM.from_pretrained(OUT, dtype=torch.float16, device_map="auto")
    merged = model.merge_and_unload()
    merged.save_pretrained(OUT + "-merged", max_shard_size="2GB")
    return merged


if __name__ == "__main__":
    fit()
    gc.collect()
    torch.cuda.empty_cache()
    net = merge()
    tok = AutoTokenizer.from_pretrained(BASE)
    for start in ("The sea", "In March", "My brother"):
        ids = tok(start, return_tensors="pt").to(net.device)
        print(tok.decode(net.generate(**ids, max_new_tokens=60, do_sample=True)[0]))
