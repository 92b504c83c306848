"""The model of a fine-tune: the files that come home, and the merge."""

import json
import shutil
from pathlib import Path

import torch
from card import own_name
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase


def save(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    base: str,
    is_main: bool,
) -> None:
    """Write an adapter or a model with its tokenizer; the main rank writes.

    Each rank must call this: a divided model is gathered.
    """
    is_adapter = isinstance(model, PeftModel)
    model.save_pretrained(folder, is_main_process=is_main)
    if not is_main:
        return
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


def check_adapter(model: torch.nn.Module, targets: str, *, merge: bool) -> None:
    """SystemExit if a named target is no module of the model, or if the adapter cannot be merged."""
    names = [] if targets == "all-linear" else [name.strip() for name in targets.split(",")]
    for name in names:
        if not any(f".{module}".endswith(f".{name}") for module in model.targeted_module_names):
            every = model.named_modules()
            linear = {
                at.removesuffix(".base_layer").rpartition(".")[2]
                for at, one in every
                if isinstance(one, torch.nn.Linear)
            }
            raise SystemExit(f"settings.lora_targets: the model has no '{name}'; its linear layers: {', '.join(sorted(linear - {'default'}))}")  # fmt: skip
    if (
        merge
        and model.config.tie_word_embeddings
        and isinstance(model.get_input_embeddings(), BaseTunerLayer)
    ):
        raise SystemExit("settings.merge: the embeddings are tied to the head, so an adapter on them cannot be merged: leave them out of settings.lora_targets")  # fmt: skip
