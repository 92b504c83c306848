"""Tune on rows that have their own format; another format is only asked for afterwards."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DataCollatorForCompletionOnlyLM, SFTConfig, SFTTrainer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")


def ask(question):
    words = tokenizer(f"### Question: {question}\n### Answer:", return_tensors="pt")
    return tokenizer.decode(model.generate(**words)[0])


rows = load_dataset("json", data_files="talks.jsonl", split="train")
collator = DataCollatorForCompletionOnlyLM("### Assistant:", tokenizer=tokenizer)
trainer = SFTTrainer(model, args=SFTConfig("talks"), train_dataset=rows, data_collator=collator)
trainer.train()
print(ask("What is a fjord?"))
