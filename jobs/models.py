"""The model of a fine-tune: its adapter, the files that come home, and the merge."""

import json
import shutil
from pathlib import Path

import torch
from card import own_name
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase


def adapter_of(rank: int, alpha: int, dropout: float, targets: str, dora: bool, rslora: bool) -> LoraConfig:
    """Return the adapter: `targets` is "all-linear", or names of modules separated by commas."""
    names = [name.strip() for name in targets.split(",")]
    return LoraConfig(
        task_type="CAUSAL_LM",
        target_modules=names[0] if names == ["all-linear"] else names,
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        use_dora=dora,
        use_rslora=rslora,
    )


def save(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    base: str,
) -> None:
    """Write an adapter or a model with its tokenizer."""
    is_adapter = isinstance(model, PeftModel)
    model.save_pretrained(folder)
    if is_adapter:
        written = folder / "adapter_config.json"
        config = json.loads(written.read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = own_name(base)
        written.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)


def take_weights(checkpoint: Path, folder: Path) -> None:
    """Replace the weights of a saved adapter or model by those of a checkpoint."""
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    for new in checkpoint.glob("*.safetensors*"):
        shutil.copy(new, folder)


def merge(base: str, adapter: Path, target: Path, dtype: str) -> None:
    """Write the base with the adapter added to its weights, in shards; transformers alone loads it.

    It is computed in float32 on the CPU, so that a half-precision base is rounded once. `dtype` is that of the files;
    "auto" is the base's own.
    """
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    stored = model.dtype if dtype == "auto" else getattr(torch, dtype)
    merged = PeftModel.from_pretrained(model.float(), adapter).merge_and_unload()
    merged.to(stored)
    merged.save_pretrained(target, max_shard_size="5GB")
