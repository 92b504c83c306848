"""NER on CoNLL-2003 (frozen environment of the 2024 paper, see requirements.txt)."""
from datasets import load_dataset
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
)

tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
model = AutoModelForTokenClassification.from_pretrained("bert-base-cased", num_labels=9)
conll = load_dataset("conll2003")


def align(batch):
    enc = tokenizer(batch["tokens"], truncation=True, is_split_into_words=True)
    enc["labels"] = [
        [-100 if w is None else tags[w] for w in enc.word_ids(i)] for i, tags in enumerate(batch["ner_tags"])
    ]
    return enc


conll = conll.map(align, batched=True)
training_args = TrainingArguments(
    output_dir="ner-bert",
    overwrite_output_dir=True,
    evaluation_strategy="epoch",
    learning_rate=3e-5,
    num_train_epochs=3,
)
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=conll["train"],
    eval_dataset=conll["validation"],
    tokenizer=tokenizer,
    data_collator=DataCollatorForTokenClassification(tokenizer),
)
trainer.train()
trainer.save_model("ner-bert/best")
