"""Interactive chat with a tuned adapter."""
import argparse

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer, pipeline


def load(base, adapter):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float16, device_map="auto")
    model = PeftModel.from_pretrained(model, adapter)
    model.half()
    model.eval()
    return model


@torch.inference_mode()
def answer(model, tok, history, max_new_tokens=256):
    ids = tok.apply_chat_template(history, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = ids.to("cuda:0")
    out = model.generate(**ids, max_new_tokens=max_new_tokens, do_sample=True, top_p=0.9)
    return tok.decode(out[0, ids["input_ids"].shape[1]:], skip_special_tokens=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--base", default="meta-llama/Llama-3.2-3B-Instruct")
    p.add_argument("--adapter", required=True)
    a = p.parse_args()
    tok = AutoTokenizer.from_pretrained(a.base)
    model = load(a.base, a.adapter)
    history = []
    while (line := input("> ").strip()) not in {"", "quit"}:
        history.append({"role": "user", "content": line})
        reply = answer(model, tok, history)
        history.append({"role": "assistant", "content": reply})
        print(reply)


if __name__ == "__main__":
    main()
