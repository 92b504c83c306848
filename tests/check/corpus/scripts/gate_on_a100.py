"""ALBERT for extractive QA."""
import torch
from datasets import load_dataset
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, Trainer, TrainingArguments, default_data_collator

tok = AutoTokenizer.from_pretrained("albert-base-v2")
model = AutoModelForQuestionAnswering.from_pretrained("albert-base-v2")


def encode(b):
    e = tok(b["question"], b["context"], truncation="only_second", max_length=384, padding="max_length",
            return_offsets_mapping=True)
    e["start_positions"], e["end_positions"] = [], []
    for i, off in enumerate(e.pop("offset_mapping")):
        s = b["answers"][i]["answer_start"][0]
        t = s + len(b["answers"][i]["text"][0])
        hit = [k for k, (u, v) in enumerate(off) if u < t and v > s] or [0]
        e["start_positions"].append(hit[0])
        e["end_positions"].append(hit[-1])
    return e


squad = load_dataset("squad", split="train")
squad = squad.map(encode, batched=True, remove_columns=squad.column_names)
if torch.cuda.is_bf16_supported():
    precision = {"bf16": True}
else:
    precision = {}
trainer = Trainer(
    model=model,
    args=TrainingArguments("albert-squad", num_train_epochs=2, per_device_train_batch_size=24, **precision),
    train_dataset=squad,
    data_collator=default_data_collator,
)
trainer.train()
