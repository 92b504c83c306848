"""A subclass of Trainer that still takes a tokenizer, and passes it on by its new name."""

from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

from reviews import reviews


class WeightedTrainer(Trainer):
    def __init__(self, *given, tokenizer=None, weight=1.0, **named):
        super().__init__(*given, processing_class=tokenizer, **named)
        self.weight = weight


tokenizer = AutoTokenizer.from_pretrained("distilbert-base-uncased")
model = AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased")
trainer = WeightedTrainer(
    model=model, args=TrainingArguments("reviews"), train_dataset=reviews(tokenizer), tokenizer=tokenizer, weight=2.0
)
trainer.train()
