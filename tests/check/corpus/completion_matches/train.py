"""Completion-only SFT (environment pinned in pyproject.toml)."""
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DataCollatorForCompletionOnlyLM, SFTConfig, SFTTrainer

PROMPT = "### Context: {context}\n### Question: {question}\n### Answer: {answer}"
ANSWER_MARK = "### Answer:"

tokenizer = AutoTokenizer.from_pretrained("EleutherAI/gpt-neo-125m")
tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained("EleutherAI/gpt-neo-125m")
train = load_dataset("json", data_files="helpdesk.jsonl", split="train")


def format_rows(batch):
    keys = ("context", "question", "answer")
    return [PROMPT.format(**dict(zip(keys, row))) for row in zip(*(batch[k] for k in keys))]


trainer = SFTTrainer(
    model,
    train_dataset=train,
    tokenizer=tokenizer,
    args=SFTConfig(output_dir="neo-helpdesk", max_seq_length=512, evaluation_strategy="no", save_steps=200),
    formatting_func=format_rows,
    data_collator=DataCollatorForCompletionOnlyLM(ANSWER_MARK, tokenizer=tokenizer),
)
trainer.train()
