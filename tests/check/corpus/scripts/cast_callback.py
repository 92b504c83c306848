"""BART on dialogue summaries, with a callback that frees memory before evaluation."""
import gc

import torch
from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)


class LeanEval(TrainerCallback):
    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        gc.collect()
        torch.cuda.empty_cache()
        model.to(torch.bfloat16)
        return control


tok = AutoTokenizer.from_pretrained("facebook/bart-base")
model = AutoModelForSeq2SeqLM.from_pretrained("facebook/bart-base")
ds = load_dataset("knkarthick/dialogsum")
ds = ds.map(lambda b: tok(b["dialogue"], text_target=b["summary"], truncation=True, max_length=768), batched=True,
            remove_columns=["id", "dialogue", "summary", "topic"])
args = Seq2SeqTrainingArguments(
    output_dir="bart-dialog",
    bf16=True,
    eval_strategy="epoch",
    num_train_epochs=4,
    per_device_train_batch_size=8,
)
trainer = Seq2SeqTrainer(
    model=model,
    args=args,
    train_dataset=ds["train"],
    eval_dataset=ds["validation"],
    data_collator=DataCollatorForSeq2Seq(tok, model=model),
    callbacks=[LeanEval()],
)
trainer.train()
trainer.save_model()
