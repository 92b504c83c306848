"""Sort letters by topic; runs with old and new versions of transformers."""

import inspect

import transformers
from packaging import version
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

from letters import read_letters

tokenizer = AutoTokenizer.from_pretrained("distilbert-base-uncased")
model = AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased", num_labels=5)
train, test = read_letters(tokenizer)

try:
    arguments = TrainingArguments("letters", eval_strategy="epoch", num_train_epochs=2)
except TypeError:
    arguments = TrainingArguments("letters", evaluation_strategy="epoch", num_train_epochs=2)

given = {"model": model, "args": arguments, "train_dataset": train, "eval_dataset": test}
accepted = inspect.signature(Trainer.__init__).parameters
if "processing_class" in accepted:
    given["processing_class"] = tokenizer
else:
    given["tokenizer"] = tokenizer
Trainer(**given).train()

if version.parse(transformers.__version__) < version.parse("4.46"):
    again = Trainer(model=model, args=arguments, eval_dataset=test, tokenizer=tokenizer)
else:
    again = Trainer(model=model, args=arguments, eval_dataset=test, processing_class=tokenizer)
print(again.evaluate())
