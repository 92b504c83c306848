"""mT5 for Chinese question answering (中文问答微调)."""
import numpy as np
from datasets import load_dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    MT5ForConditionalGeneration,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

tok = AutoTokenizer.from_pretrained("google/mt5-small")
model = MT5ForConditionalGeneration.from_pretrained("google/mt5-small")  # 权重为 float32
data = load_dataset("cmrc2018")


def preprocess(batch):
    # 问题与上下文拼接
    src = [f"问题:{q} 上下文:{c}" for q, c in zip(batch["question"], batch["context"])]
    tgt = [a["text"][0] for a in batch["answers"]]
    return tok(src, text_target=tgt, truncation=True, max_length=512)


data = data.map(preprocess, batched=True, remove_columns=data["train"].column_names)


def exact_match(p):
    preds = np.where(p.predictions != -100, p.predictions, tok.pad_token_id)
    refs = np.where(p.label_ids != -100, p.label_ids, tok.pad_token_id)
    pairs = zip(tok.batch_decode(preds, skip_special_tokens=True), tok.batch_decode(refs, skip_special_tokens=True))
    return {"em": float(np.mean([a.strip() == b.strip() for a, b in pairs]))}


args = Seq2SeqTrainingArguments(
    output_dir="mt5-cmrc",
    fp16=True,
    predict_with_generate=True,
    eval_strategy="epoch",
    learning_rate=3e-4,
    num_train_epochs=10,
)
trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=data["train"], eval_dataset=data["validation"],
                         data_collator=DataCollatorForSeq2Seq(tok, model=model), compute_metrics=exact_match)
trainer.train()
