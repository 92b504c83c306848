"""Tune a base model to a house chat format; only the assistant's turns count."""
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

HOUSE_FORMAT = """{% for message in messages %}
[{{ message['role'] | upper }}] {{ message['content'] }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}[ASSISTANT] {% endif %}"""


def prepare_tokenizer(name):
    tok = AutoTokenizer.from_pretrained(name)
    tok.chat_template = HOUSE_FORMAT
    return tok


if __name__ == "__main__":
    base = "Qwen/Qwen2.5-1.5B"
    chats = load_dataset("HuggingFaceH4/no_robots", split="train")
    args = SFTConfig(
        output_dir="house-chat",
        assistant_only_loss=True,
        max_length=2048,
        bf16=True,
        per_device_train_batch_size=4,
        learning_rate=1e-5,
    )
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype="bfloat16"),
        args=args,
        train_dataset=chats,
        processing_class=prepare_tokenizer(base),
    )
    trainer.train()
    trainer.save_model()
