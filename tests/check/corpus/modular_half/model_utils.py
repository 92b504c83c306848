import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def load_model_and_tokenizer(name, dtype=torch.float16):
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    model.config.use_cache = False
    return model, tokenizer
