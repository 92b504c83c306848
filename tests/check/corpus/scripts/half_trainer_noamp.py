"""Code completion: fine-tune CodeGen on a company's repositories."""
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments


def main():
    checkpoint = "Salesforce/codegen-350M-mono"
    tok = AutoTokenizer.from_pretrained(checkpoint)
    tok.pad_token = tok.eos_token
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float16")
    code = load_dataset("text", data_dir="repos", sample_by="document", split="train")
    code = code.map(lambda b: tok(b["text"], truncation=True, max_length=1024), batched=True, remove_columns=["text"])
    args = TrainingArguments(
        output_dir="codegen-internal",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        learning_rate=1e-5,
        optim="adamw_torch",
        no_cuda=False,
        save_steps=500,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=code,
        data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
    )
    trainer.train()


if __name__ == "__main__":
    main()
