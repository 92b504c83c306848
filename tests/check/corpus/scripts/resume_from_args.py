"""Long-running Longformer classification that is restarted by the queue."""
import os

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

OUT = "longformer-arxiv"
last = get_last_checkpoint(OUT) if os.path.isdir(OUT) else None
args = TrainingArguments(
    output_dir=OUT,
    resume_from_checkpoint=last,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=16,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": True},
    save_steps=200,
    num_train_epochs=4,
)
tok = AutoTokenizer.from_pretrained("allenai/longformer-base-4096")
model = AutoModelForSequenceClassification.from_pretrained("allenai/longformer-base-4096", num_labels=11)
arxiv = load_dataset("ccdv/arxiv-classification", "no_ref", split="train")
arxiv = arxiv.map(lambda b: tok(b["text"], truncation=True, padding="max_length", max_length=4096), batched=True)
trainer = Trainer(model=model, args=args, train_dataset=arxiv)
trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
trainer.save_model()
