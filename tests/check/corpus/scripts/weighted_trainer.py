"""Imbalanced sentiment: a Trainer subclass with class weights and a callback that logs gradient norms."""
import torch
from datasets import load_dataset
from torch import nn
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer,
                          TrainerCallback, TrainingArguments)


class WeightedTrainer(Trainer):
    def __init__(self, *args, class_weights=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights = class_weights

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        w = self.class_weights.to(out.logits.device, out.logits.dtype)
        loss = nn.functional.cross_entropy(out.logits, labels, weight=w)
        return (loss, out) if return_outputs else loss


class HeadNorm(TrainerCallback):
    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        w = model.classifier.out_proj.weight.detach().clone().half()
        print(f"epoch {state.epoch:.1f}: head norm {w.float().norm():.3f}")


ckpt = "cardiffnlp/twitter-roberta-base"
tok = AutoTokenizer.from_pretrained(ckpt)
ds = load_dataset("tweet_eval", "irony").map(lambda b: tok(b["text"], truncation=True), batched=True)
model = AutoModelForSequenceClassification.from_pretrained(ckpt, num_labels=2)
trainer = WeightedTrainer(
    model=model,
    args=TrainingArguments(output_dir="irony", eval_strategy="epoch", fp16=False, num_train_epochs=4),
    train_dataset=ds["train"],
    eval_dataset=ds["validation"],
    processing_class=tok,
    data_collator=DataCollatorWithPadding(tok),
    callbacks=[HeadNorm()],
    class_weights=torch.tensor([1.0, 1.8]),
)
trainer.train()
