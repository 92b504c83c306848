"""Causal language modelling on a text column, after the usual example script."""
import argparse
from itertools import chain

from datasets import load_dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, default_data_collator


def group_texts(examples, block_size):
    joined = {k: list(chain(*examples[k])) for k in examples}
    total = (len(joined["input_ids"]) // block_size) * block_size
    result = {k: [t[i:i + block_size] for i in range(0, total, block_size)] for k, t in joined.items()}
    result["labels"] = result["input_ids"].copy()
    return result


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model_name_or_path", default="openai-community/gpt2")
    ap.add_argument("--block_size", type=int, default=512)
    ap.add_argument("--use_auth_token", action="store_true")
    a = ap.parse_args()
    config = AutoConfig.from_pretrained(a.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(a.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(
        a.model_name_or_path, config=config, use_auth_token=True if a.use_auth_token else None
    )
    raw = load_dataset("wikitext", "wikitext-2-raw-v1")
    lm = raw.map(lambda b: tokenizer(b["text"]), batched=True, remove_columns=["text"])
    lm = lm.map(lambda b: group_texts(b, a.block_size), batched=True)
    training_args = TrainingArguments(
        output_dir="clm",
        overwrite_output_dir=True,
        evaluation_strategy="steps",
        eval_steps=500,
        per_device_train_batch_size=8,
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=lm["train"],
        eval_dataset=lm["validation"],
        tokenizer=tokenizer,
        data_collator=default_data_collator,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
