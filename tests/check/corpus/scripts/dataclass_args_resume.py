"""NLI with a TrainingArguments subclass whose defaults are the group's standard."""
from dataclasses import dataclass, field

from datasets import load_dataset
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding,
                          HfArgumentParser, Trainer, TrainingArguments)


@dataclass
class GroupArguments(TrainingArguments):
    output_dir: str = field(default="runs/nli")
    fp16: bool = field(default=True)
    resume_from_checkpoint: str | None = field(default="runs/nli/checkpoint-20000")
    encoder: str = field(default="microsoft/mdeberta-v3-base")


def main():
    (args,) = HfArgumentParser(GroupArguments).parse_args_into_dataclasses()
    tok = AutoTokenizer.from_pretrained(args.encoder)
    model = AutoModelForSequenceClassification.from_pretrained(args.encoder, dtype="float32", num_labels=3)
    xnli = load_dataset("xnli", "de")
    xnli = xnli.map(lambda b: tok(b["premise"], b["hypothesis"], truncation=True), batched=True)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=xnli["train"],
        eval_dataset=xnli["validation"],
        processing_class=tok,
        data_collator=DataCollatorWithPadding(tok),
    )
    trainer.train()
    trainer.save_model()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
