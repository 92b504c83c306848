"""LayoutLM on scanned receipts (project code of a master's thesis)."""
from transformers import LayoutLMForTokenClassification, LayoutLMTokenizerFast, Trainer, TrainingArguments

from receipts import load_receipts

cfg = {}
cfg["output_dir"] = "layoutlm-receipts"
cfg["num_train_epochs"] = 12
cfg["per_device_train_batch_size"] = 8
cfg["fp16"] = True
cfg["fp16_backend"] = "amp"
cfg["save_strategy"] = "epoch"

tokenizer = LayoutLMTokenizerFast.from_pretrained("microsoft/layoutlm-base-uncased")
train, dev, names = load_receipts("sroie", tokenizer)
model = LayoutLMForTokenClassification.from_pretrained(
    "microsoft/layoutlm-base-uncased", num_labels=len(names),
    id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)})


class ReceiptTrainer(Trainer):
    def log(self, logs, start_time=None):
        logs = {k: round(v, 5) if isinstance(v, float) else v for k, v in logs.items()}
        super().log(logs, start_time)


trainer = ReceiptTrainer(model=model, args=TrainingArguments(**cfg), train_dataset=train, eval_dataset=dev)
trainer.train()
print(trainer.evaluate())
