"""QLoRA of Llama-3.1-8B on function calls, with TRL."""
import torch
from datasets import load_dataset
from peft import LoraConfig, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

LOAD = dict(device_map="auto", dtype=torch.bfloat16)


def get_model(name):
    bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16,
                             bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained(name, quantization_config=bnb, **LOAD)
    return prepare_model_for_kbit_training(model)


if __name__ == "__main__":
    name = "meta-llama/Llama-3.1-8B-Instruct"
    trainer = SFTTrainer(
        model=get_model(name),
        args=SFTConfig(output_dir="llama-tools", bf16=True, max_length=4096, per_device_train_batch_size=2,
                       gradient_accumulation_steps=8, num_train_epochs=1, save_steps=200),
        train_dataset=load_dataset("json", data_files="calls.jsonl", split="train"),
        processing_class=AutoTokenizer.from_pretrained(name),
        peft_config=LoraConfig(r=64, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear"),
    )
    trainer.train()
    trainer.save_model("llama-tools/adapter")
