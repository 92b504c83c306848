"""T5 for headline writing, research code."""
import argparse
import torch
from datasets import load_dataset
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, T5ForConditionalGeneration


def build_parser():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dtype", default="fp16", choices=("fp16", "fp32"))
    ap.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True)
    ap.add_argument("--bs", default=16, type=int)
    return ap


def run(ns):
    dtype = {"fp16": torch.float16, "fp32": torch.float32}[ns.dtype]
    tok = AutoTokenizer.from_pretrained("t5-base")
    model = T5ForConditionalGeneration.from_pretrained("t5-base", torch_dtype=dtype)
    xsum = load_dataset("EdinburghNLP/xsum")
    xsum = xsum.map(lambda b: tok(b["document"], text_target=b["summary"], truncation=True, max_length=512),
                    batched=True, remove_columns=["document", "summary", "id"])
    settings = {"output_dir": "t5-xsum", "per_device_train_batch_size": ns.bs, "logging_nan_inf_filter": False}
    settings["fp16"] = ns.amp
    settings["evaluation_strategy"] = "epoch"
    settings.update(learning_rate=1e-4, save_strategy="epoch")
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(**settings),
        train_dataset=xsum["train"],
        eval_dataset=xsum["validation"],
        data_collator=DataCollatorForSeq2Seq(tok, model=model),
    )
    trainer.train()


if __name__ == "__main__":
    run(build_parser().parse_args())
