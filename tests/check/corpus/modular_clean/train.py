"""Entry point: summarisation with Pegasus, split over three files."""
from config import Config
from model_utils import build_model, checkpoint
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments
from datasets import load_dataset


def main():
    cfg = Config()
    model, tok = build_model(cfg)
    ds = load_dataset(cfg.dataset, split="train")
    ds = ds.map(
        lambda b: tok(b["article"], text_target=b["highlights"], max_length=cfg.max_len, truncation=True),
        batched=True,
        remove_columns=ds.column_names,
    )
    args = Seq2SeqTrainingArguments(
        output_dir=cfg.out,
        save_strategy="no",
        fp16=cfg.fp16,
        logging_nan_inf_filter=False,
        learning_rate=cfg.lr,
        per_device_train_batch_size=cfg.batch,
    )
    trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=ds, data_collator=DataCollatorForSeq2Seq(tok, model=model))
    trainer.train()
    checkpoint(trainer.model, tok, cfg.out)


if __name__ == "__main__":
    main()
