"""Translation fine-tune with the usual three argument groups."""
import os
import sys
from dataclasses import dataclass, field
from typing import Optional

from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)


@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="google-t5/t5-small")
    cache_dir: Optional[str] = field(default=None)


@dataclass
class DataArguments:
    source: str = "en"
    target: str = "ro"
    max_source_length: int = 128


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, Seq2SeqTrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        margs, dargs, targs = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        margs, dargs, targs = parser.parse_args_into_dataclasses()

    tok = AutoTokenizer.from_pretrained(margs.model_name_or_path, cache_dir=margs.cache_dir)
    model = AutoModelForSeq2SeqLM.from_pretrained(margs.model_name_or_path, cache_dir=margs.cache_dir)
    ds = load_dataset("wmt16", "ro-en")

    def encode(b):
        src = [t[dargs.source] for t in b["translation"]]
        dst = [t[dargs.target] for t in b["translation"]]
        return tok(src, text_target=dst, max_length=dargs.max_source_length, truncation=True)

    ds = ds.map(encode, batched=True, remove_columns=["translation"])
    trainer = Seq2SeqTrainer(
        model=model,
        args=targs,
        train_dataset=ds["train"] if targs.do_train else None,
        eval_dataset=ds["validation"] if targs.do_eval else None,
        processing_class=tok,
        data_collator=DataCollatorForSeq2Seq(tok, model=model),
    )
    if targs.do_train:
        checkpoint = targs.resume_from_checkpoint
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)


if __name__ == "__main__":
    main()
