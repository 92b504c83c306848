"""setfit's trainer, as its README calls it: it trains the body by sentence-transformers' trainer, then a head by scikit-learn."""

from datasets import load_dataset
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.metrics import accuracy_score

data = load_dataset("json", data_files={"train": "data/train.jsonl", "test": "data/test.jsonl"})
trainer = Trainer(
    model=SetFitModel.from_pretrained("model"),
    args=TrainingArguments(output_dir="out", batch_size=4, num_epochs=1, logging_steps=5, report_to="none"),
    train_dataset=data["train"],
    eval_dataset=data["test"],
    metric=accuracy_score,  # its default is fetched from the hub
)
trainer.train()
print(trainer.evaluate())
