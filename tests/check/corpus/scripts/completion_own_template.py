"""Chat tuning on support tickets, loss on the assistant's turns alone."""
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}"
    "<|assistant|>\n{% generation %}{{ m['content'] }}{{ eos_token }}{% endgeneration %}\n"
    "{% else %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

tok = AutoTokenizer.from_pretrained("HuggingFaceTB/SmolLM2-1.7B")
tok.chat_template = TEMPLATE
model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-1.7B", dtype="bfloat16")
rows = load_dataset("json", data_files="tickets_chat.jsonl", split="train")
trainer = SFTTrainer(
    model,
    SFTConfig("support", assistant_only_loss=True, max_length=1024, bf16=True, per_device_train_batch_size=4),
    train_dataset=rows,
    processing_class=tok,
)
trainer.train()
trainer.save_model("support/final")
