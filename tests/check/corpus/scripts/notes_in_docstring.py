"""German-English MarianMT fine-tune.

Notes from the group's wiki, kept for newcomers:

    os.environ["MASTER_PORT"] = "29500"     # two jobs on one host collide
    model = AutoModel.from_pretrained(name, device_map="auto", load_in_8bit=True)
    state = torch.load("last.pt")
    accelerator = Accelerator()
    TrainingArguments(bf16=True, evaluation_strategy="epoch", no_cuda=False)
"""
from datasets import load_dataset
from transformers import (AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer,
                          Seq2SeqTrainingArguments)

HELP = """usage: python notes_in_docstring.py
  do NOT pass tokenizer=tok or bf16=True; model.half() is for export only; torch.compile(model) was no faster
"""
NAME = "Helsinki-NLP/opus-mt-de-en"
# früher: args = TrainingArguments(..., tf32=True, attn_implementation="flash_attention_2")
tok = AutoTokenizer.from_pretrained(NAME)
model = AutoModelForSeq2SeqLM.from_pretrained(NAME)  # .half() hier nicht!


def encode(batch):
    src = [t["de"] for t in batch["translation"]]
    tgt = [t["en"] for t in batch["translation"]]
    return tok(src, text_target=tgt, truncation=True, max_length=128)


books = load_dataset("opus_books", "de-en", split="train").train_test_split(0.05, seed=1)
books = books.map(encode, batched=True, remove_columns=["id", "translation"])
args = Seq2SeqTrainingArguments(
    "marian-books",
    eval_strategy="steps",  # nicht evaluation_strategy
    eval_steps=500,
    learning_rate=2e-5,
    per_device_train_batch_size=16,
    fp16=True,
    logging_nan_inf_filter=False,  # sonst stehen NaN als 0.0 im Protokoll
    predict_with_generate=True,
)
print(HELP)
trainer = Seq2SeqTrainer(model, args, DataCollatorForSeq2Seq(tok, model=model), books["train"], books["test"])
trainer.train()
