import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


def build_model(cfg):
    tok = AutoTokenizer.from_pretrained(cfg.name)
    model = AutoModelForSeq2SeqLM.from_pretrained(cfg.name, dtype=getattr(torch, cfg.weights))
    return model, tok


def checkpoint(model, tok, where):
    model.save_pretrained(where)
    tok.save_pretrained(where)
